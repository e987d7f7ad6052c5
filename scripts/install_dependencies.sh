#!/usr/bin/env bash
# Makes sure that what a build needs is installed (Debian 12, Ubuntu 24.04 or newer). As root it installs what is missing
# and says so; otherwise it prints the one command that does, and exits with 1.
#   scripts/install_dependencies.sh [--ci]        --ci: also clang with libFuzzer, clang-format 14, Open MPI, and ip for network namespaces
set -euo pipefail

packages=(g++ meson ninja-build pkg-config python3 git libdnnl-dev zlib1g-dev libpng-dev libjpeg-dev nlohmann-json3-dev libcli11-dev libfmt-dev doctest-dev libsodium-dev liburing-dev libcpp-httplib-dev libeigen3-dev)

if ! command -v dpkg-query >/dev/null; then
  echo "This script knows Debian and Ubuntu. On another system install: a C++20 compiler (g++ 12 or clang 16), meson, ninja," \
       "pkg-config, python3, oneDNN, Eigen 3.4, zlib, libpng, libjpeg-turbo, nlohmann-json, CLI11, fmt, libsodium, liburing and cpp-httplib (optional) and doctest; then: meson setup build && ninja -C build" >&2
  exit 1
fi
is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

if [[ "${1:-}" == --ci ]]; then
  version=16
  for other in 16 17 18 19 20; do if is_installed clang-$other; then version=$other; break; fi; done
  packages+=(libopenmpi-dev openmpi-bin iproute2 clang-$version libclang-rt-$version-dev libomp-$version-dev)
  # For the format of sources, by this version alone; newer systems may not have it, and then CI says so.
  if ! is_installed clang-format-14; then
    if [[ $EUID -eq 0 ]]; then apt-get update -qq || true; fi  # a bare system knows of no packages yet
    if [[ -n $(apt-cache madison clang-format-14 2>/dev/null) ]]; then packages+=(clang-format-14); fi
  fi
fi
missing=()
for package in "${packages[@]}"; do is_installed "$package" || missing+=("$package"); done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $EUID -ne 0 ]]; then
  echo "Some packages are missing. Install them, then run this again:" >&2
  echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "Installing: ${missing[*]}"
apt-get update -qq
log=$(mktemp)
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -f "$log"
