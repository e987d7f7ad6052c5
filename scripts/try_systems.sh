#!/usr/bin/env bash
# Runs README's commands scripts/demo.sh and scripts/test.sh on bare systems: Debian's and Ubuntu's smallest roots, in
# which not even a compiler is installed.
#
#   scripts/try_systems.sh [--cxx COMPILER]... [SYSTEM...] [-- COMMAND...]
#
#   SYSTEM          debian:12, debian:13 or ubuntu:24.04 (default: all three)
#   --cxx COMPILER  runs only scripts/test.sh, built with this one: g++-13, clang++-19 ... Systems that have no package of it are
#                   left out. May be given several times.
#   -- COMMAND      runs this instead of the two commands, in a clone of the commit that is checked out here
#
# Every run starts from a fresh root. The smallest roots and downloaded packages are kept in $SYSTEMS_DIR
# (default: ~/.cache/lockstep-systems), as are logs and, until the next run, the root of a command that failed. DEMO_SECONDS (5) is
# passed on. With CCACHE_DIR the systems share that ccache. Needs root and mmdebstrap. A system whose archive cannot be reached is
# left out. Ends with "N passed, N failed": one for each system, compiler and command.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

declare -A suites=([debian:12]=bookworm [debian:13]=trixie [ubuntu:24.04]=noble)
systems=() compilers=() commands=() shown=
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
    --cxx) [[ ${2:-} =~ ^(g|clang)\+\+-[0-9]+$ ]] || { echo "--cxx expects g++-N or clang++-N, got '${2:-}'" >&2; exit 2; }
      compilers+=("$2"); shift 2 ;;
    --) shift; [[ $# -gt 0 ]] || { echo "expected a command after --" >&2; exit 2; }
      commands=("$(printf '%q ' "$@")") shown=$*; shift $# ;;
    *) [[ -n ${suites[$1]:-} ]] || { echo "expected debian:12, debian:13 or ubuntu:24.04, got '$1'" >&2; exit 2; }
      systems+=("$1"); shift ;;
  esac
done
if [[ ${#systems[@]} -eq 0 ]]; then systems=(debian:12 debian:13 ubuntu:24.04); fi
if [[ ${#commands[@]} -eq 0 ]]; then
  if [[ ${#compilers[@]} -gt 0 ]]; then commands=(scripts/test.sh); else commands=(scripts/demo.sh scripts/test.sh); fi
fi
if [[ ${#compilers[@]} -eq 0 ]]; then compilers=(""); fi

[[ $EUID -eq 0 ]] || { echo "root is needed to make the roots of other systems: sudo $0" >&2; exit 1; }
scripts/install_dependencies.sh --systems || exit 1
unshare --mount --pid --fork true 2>/dev/null || { echo "this machine does not let root make namespaces (in a container: run it privileged)" >&2; exit 1; }
cache=${SYSTEMS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-systems}
mkdir -p "$cache" && cache=$(cd "$cache" && pwd) || exit 1
if [[ -n ${CCACHE_DIR:-} ]]; then mkdir -p "$CCACHE_DIR" && CCACHE_DIR=$(cd "$CCACHE_DIR" && pwd) || exit 1; fi
exec 9>"$cache/lock"
flock -n 9 || { echo "another $0 uses $cache" >&2; exit 1; }

# Prints mmdebstrap's options for the smallest root of a suite.
options_of() {
  local keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  echo --variant=minbase
  if [[ $1 != noble ]]; then return; fi
  echo --components=main,universe --include=apt  # Ubuntu's smallest root does not include apt
  if [[ -r $keys ]]; then return; fi  # Debian 12 does not have Ubuntu's keys, but Debian 13's archive does
  if [[ ! -r $cache/keys$keys ]]; then scripts/unpack_debian.sh trixie "$cache/keys" ubuntu-keyring || return; fi
  # apt checks signatures as a user who may not be able to enter this home.
  install -m 644 "$cache/keys$keys" "/tmp/lockstep-${keys##*/}" && echo "--keyring=/tmp/lockstep-${keys##*/}"
}

smallest_root() {  # system: makes the tar of its root, or says why not
  local name=${1/:/-} suite=${suites[$1]} options
  if [[ -s $cache/$name.tar ]]; then return; fi
  if options=$(options_of "$suite" 2>"$cache/$name.log"); then
    # shellcheck disable=SC2086  # several words
    if mmdebstrap $options "$suite" "$cache/$name.part.tar" >>"$cache/$name.log" 2>&1 </dev/null; then mv "$cache/$name.part.tar" "$cache/$name.tar"; return; fi
  fi
  rm -f "$cache/$name.part.tar"
  echo "$1: left out, as its root cannot be made ($(grep -E '^(E:|Err)|error|cannot' "$cache/$name.log" | tail -1); all of it: $cache/$name.log)"
  return 1
}

# Process 1 of the system; it waits for the command and for orphans. /proc and /dev/shm are separate, devices and
# network are the machine's.
read -r -d '' enter <<'END'
set -e
mount --rbind "$1" "$1" && cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount --bind "$2" var/cache/apt/archives
if [[ -n $3 ]]; then mkdir -p ccache && mount --bind "$3" ccache; fi
cp -L /etc/resolv.conf etc/resolv.conf
cp -L /etc/hosts etc/hosts
mkdir -p .old
pivot_root . .old
umount -l .old
cd /root/lockstep
code=0
"${@:4}" || code=$?
exit $code
END

run_in() {  # name, command...: returns the command's exit code
  local name=$1 variables=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "DEMO_SECONDS=${DEMO_SECONDS:-5}") variable
  shift
  for variable in http_proxy https_proxy no_proxy; do if [[ -n ${!variable:-} ]]; then variables+=("$variable=${!variable}"); fi; done
  if [[ -n ${CCACHE_DIR:-} ]]; then variables+=(CCACHE_DIR=/ccache CCACHE_COMPILERCHECK=content "CCACHE_SLOPPINESS=pch_defines,time_macros"); fi
  unshare --mount --propagation private --pid --fork --kill-child -- bash -c "$enter" bash "$cache/$name" "$cache/packages-$system" "${CCACHE_DIR:-}" \
    env -i "${variables[@]}" "$@" 9>&- </dev/null
}

# Creates a fresh root with a clone of this commit. Exits with 3 if the system has no package of the compiler.
prepare() {  # name, compiler
  local name=$1 package=${2/clang++/clang}
  rm -rf --one-file-system "${cache:?}/$name" && mkdir -p "$cache/$name" "$cache/packages-$system/partial" && tar -C "$cache/$name" -xf "$cache/$system.tar" || return
  git clone -q --depth 1 "file://$PWD" "$cache/$name/root/lockstep" || return
  if [[ -n $package ]]; then
    # shellcheck disable=SC2016  # $0 is the package
    run_in "$name" bash -c 'apt-get update -qq && { [[ -n $(apt-cache madison "$0") ]] || { echo "no package $0"; exit 3; }; }' "$package" || return
  fi
  if [[ -n ${CCACHE_DIR:-} ]]; then run_in "$name" bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ccache'; fi
}

passed=0 failed=0
for key in "${systems[@]}"; do
  system=${key/:/-}
  smallest_root "$key" || continue
  for compiler in "${compilers[@]}"; do
    name=$system${compiler:+-$compiler} title="$key${compiler:+, $compiler}" good=true
    prepare "$name" "$compiler" >"$cache/$name.log" 2>&1
    code=$?
    if [[ $code -eq 3 ]]; then
      echo "$title: left out, as this system has $(tail -1 "$cache/$name.log")"
      rm -rf --one-file-system "${cache:?}/$name"
      continue
    elif [[ $code -ne 0 ]]; then
      tail -20 "$cache/$name.log"
      echo "$title: failed before the first command (all of it: $cache/$name.log)"
      failed=$((failed + ${#commands[@]}))
      continue
    fi
    for command in "${commands[@]}"; do
      start=$SECONDS what=${shown:-$command}
      what=${what%%$'\n'*} what=${what:0:70}
      echo "--- $command" >>"$cache/$name.log"
      run_in "$name" ${compiler:+"CXX=$compiler"} bash -c "$command" >"$cache/$name.out" 2>&1
      code=$?
      cat "$cache/$name.out" >>"$cache/$name.log"
      if [[ $code -eq 0 ]]; then
        passed=$((passed + 1))
        echo "$title: $what: $(tail -1 "$cache/$name.out") ($((SECONDS - start)) s)"
      else
        failed=$((failed + 1)) good=false
        tail -60 "$cache/$name.out"
        echo "$title: $what failed with exit code $code after $((SECONDS - start)) s (all of it: $cache/$name.log; the root: $cache/$name)"
      fi
      rm -f "$cache/$name.out"
    done
    if $good; then rm -rf --one-file-system "${cache:?}/$name"; fi
  done
done
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
