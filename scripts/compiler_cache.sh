# Sourced by scripts that build: one ccache (4.7 or newer, if installed) for all builds. meson finds ccache by itself
# unless CXX is set; then prefix the compiler with $CCACHE.
if command -v ccache >/dev/null; then
  export CCACHE=ccache CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-ccache} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
  # Clones in other folders share the cached files; precompiled headers are compared by content. CCACHE_COMMENTS: a
  # precompiled header is made anew when only a comment of a header changed. The compiler would include that header again
  # beside an old one, as their contents differ.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_COMMENTS=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
fi
