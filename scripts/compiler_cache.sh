# Sourced by the scripts that build: one cache of compiled files for all builds, where ccache 4.7 or newer is installed.
# meson finds ccache by itself unless CXX is set: CCACHE stands in front of that one.
if command -v ccache >/dev/null; then
  export CCACHE=ccache CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-ccache} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
  # A clone in another folder finds what this one compiled; headers that were compiled beforehand are trusted by their content.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
fi
