#!/usr/bin/env bash
# Installs the packages that a build needs (Debian 12 and 13, Ubuntu 24.04 or newer). As root it installs what is
# missing and says so; otherwise it prints the command for that and exits with 1.
#   scripts/install_dependencies.sh [--ci | --systems]
# --ci: also clang with libFuzzer, lld, clang-format 14, Open MPI, ip for network namespaces, ccache, locales and yamllint.
# --systems: only what scripts/try_systems.sh needs.
# CXX may name a compiler that is installed, too: g++-13, clang++-19 ...
set -euo pipefail

packages=(g++ meson ninja-build pkg-config python3 git libdnnl-dev zlib1g-dev libpng-dev libjpeg-dev nlohmann-json3-dev libcli11-dev libfmt-dev doctest-dev libsodium-dev liburing-dev libboost-dev libeigen3-dev)

if ! command -v dpkg-query >/dev/null; then
  echo "This script knows Debian and Ubuntu. On another system install: a C++20 compiler (g++ 12 or clang 16), meson, ninja," \
       "pkg-config, python3, oneDNN, Eigen 3.4, zlib, libpng, libjpeg-turbo, nlohmann-json, CLI11, fmt, libsodium, liburing and Boost (optional) and doctest; then: meson setup build && ninja -C build" >&2
  exit 1
fi
is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

is_offered() { is_installed "$1" || [[ -n $(apt-cache madison "$1" 2>/dev/null) ]]; }
updated=
update() { if [[ -z $updated && $EUID -eq 0 ]]; then apt-get update -qq && updated=yes; fi; }

if [[ "${1:-}" == --systems ]]; then
  packages=(mmdebstrap git)
elif [[ "${1:-}" == --ci ]]; then
  packages+=(libopenmpi-dev openmpi-bin iproute2 lld ccache locales yamllint)
  # Uses an installed clang, else the oldest one that this system offers. A bare system lists packages only after an
  # update.
  version=
  for other in 16 17 18 19 20; do if is_installed clang-$other; then version=$other; break; fi; done
  if [[ -z $version ]] || ! is_installed clang-format-14; then update || true; fi
  for other in 16 17 18 19 20; do if [[ -z $version ]] && is_offered clang-$other; then version=$other; fi; done
  version=${version:-16}
  packages+=("clang-$version" "libclang-rt-$version-dev" "libomp-$version-dev")
  # Only version 14 reproduces our format. If a system does not offer it, CI says so.
  if is_offered clang-format-14; then packages+=(clang-format-14); fi
fi
if [[ "${1:-}" != --systems && "${CXX:-}" =~ ^(g|clang)\+\+(-[0-9]+)$ ]]; then
  compiler=("$CXX")
  if [[ $CXX == clang* ]]; then compiler=("clang${BASH_REMATCH[2]}" "libomp${BASH_REMATCH[2]}-dev"); fi
  # A compiler that is not from a package is left alone.
  if ! command -v "$CXX" >/dev/null || is_installed "${compiler[0]}"; then packages+=("${compiler[@]}"); fi
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
update
log=$(mktemp)
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
rm -f "$log"
