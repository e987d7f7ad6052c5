#!/usr/bin/env bash
# Do our files compile with Debian 13's versions of third-party headers? Uses this system's compiler, and only the
# headers of Debian 13's packages, which are unpacked into build-headers/. Nothing is linked or run.
#   scripts/foreign_headers.sh [FILE...]          default: every .cpp file that includes a third-party header
# Ends with "N passed, N failed". If the archive cannot be reached, it says so and counts nothing.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
packages=(libdnnl-dev libboost1.83-dev libfmt-dev nlohmann-json3-dev libcli11-dev doctest-dev libeigen3-dev liburing-dev
  libsodium-dev libpng-dev libjpeg62-turbo-dev zlib1g-dev libopenmpi-dev linux-libc-dev)
headers='(oneapi|fmt|nlohmann|CLI|doctest|Eigen|boost)/|(liburing|sodium|png|jpeglib|zlib|mpi)\.h'
folder=build-headers

if [[ $(cat $folder/packages 2>/dev/null) != "${packages[*]}" ]]; then
  rm -rf $folder
  scripts/unpack_debian.sh trixie $folder/root "${packages[@]}" || { rm -rf $folder; echo "left out: Debian 13's headers cannot be fetched here"; echo "0 passed, 0 failed"; exit; }
  echo "${packages[*]}" >$folder/packages
fi
machine=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || g++ -print-multiarch)
include=$folder/root/usr/include library=$folder/root/usr/lib/$machine
flags=(-std=c++20 -w -I. -I"$folder/generated" -DLOCKSTEP_WITH_ONEDNN -DLOCKSTEP_WITH_HTTP -DLOCKSTEP_WITH_URING -DOMPI_SKIP_MPICXX '-DLOCKSTEP_VERSION=""')
for part in "$include" "$include/$machine" "$include/eigen3" "$library"/openmpi/include; do flags+=(-isystem "$part"); done

# Headers that meson would generate. Any values do.
mkdir -p $folder/generated/{apps,base,engine,lockstep,extensions/launcher}
for file in apps/*.h.in; do sed -E 's/@[A-Z_]+@//' "$file" >"$folder/generated/apps/$(basename "$file" .in)"; done
sed -E 's/@[A-Z_]+@//' extensions/launcher/programs/new_project.h.in >$folder/generated/extensions/launcher/new_project.h
for page in base/environment engine/config; do sed -E "s/@NAME@/${page#*/}/; s/@TEXT@//" lockstep/page.h.in >"$folder/generated/${page}_page.h"; done
for name in extensions/*/; do name=$(basename "$name") && sed "s/@NAME@/$name/g" lockstep/extension.h.in >"$folder/generated/lockstep/$name.h"; done

files=("$@")
if [[ $# -eq 0 ]]; then
  mapfile -t all < <(git ls-files '*.cpp' | xargs grep -lE "^ *# *include *<($headers)")
  # Most tests include doctest and no other library: one of them is enough.
  one=
  for file in "${all[@]}"; do
    if grep -E "^ *# *include *<($headers)" "$file" | grep -qv doctest/; then files+=("$file"); elif [[ -z $one ]]; then one=$file files+=("$file"); fi
  done
fi

# A header that this system has as well must be taken from the folder.
if ! taken=$(grep -hE "^ *# *include *<($headers)" "${files[@]}" | sort -u | g++ "${flags[@]}" -M -x c++ - 2>&1); then
  grep -m 5 error <<<"$taken"
  echo "these headers cannot be included together, or one is in no package above"
  echo "0 passed, 1 failed"
  exit 1
fi
wrong=$(grep -oE '/usr/include/[^ ]+' <<<"${taken//$folder\/root\/usr/}" | sort -u | while read -r file; do if [[ -e $folder/root$file ]]; then echo "$file"; fi; done)
if [[ -n $wrong ]]; then echo "the host's headers were taken:" "${wrong//$'\n'/ }"; echo "0 passed, 1 failed"; exit 1; fi

# All files below a top-level folder are compiled as one, which is three times as fast; if that fails, one by one.
compile() {  # files...
  local file number=0
  for file in "$@"; do
    number=$((number + 1))
    printf '#define main main_%s\n#include "%s"\n#undef main\n' $number "$file"
  done | g++ "${flags[@]}" -fsyntax-only -x c++ - 2>&1
}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
check() {  # files...: writes which of them fail, and how many pass
  local file good=0 said log
  log=$(mktemp "$results/XXXXXX")
  if [[ $# -gt 1 ]] && compile "$@" >/dev/null; then good=$#; set --; fi
  for file in "$@"; do
    if said=$(compile "$file"); then good=$((good + 1)); else printf 'failed: %s\n%s\n' "$file" "$(grep -m 5 error <<<"$said")" >>"$log"; fi
  done
  echo "passed $good" >>"$log"
}
declare -A groups=()
for file in "${files[@]}"; do
  group=${file%%/*}
  # Programs that define the same names as others in their folder.
  if [[ $file =~ ^(bench/(cuda|offload|quantized|sparse)|examples/guide_b/train)\.cpp$ ]]; then group=$file; fi
  groups[$group]+=" $file"
done
# Those with the most files first.
for group in $(for group in "${!groups[@]}"; do echo "${#groups[$group]} $group"; done | sort -rn | cut -d" " -f2); do
  while [[ $(jobs -rp | wc -l) -ge 2 ]]; do wait -n; done
  # shellcheck disable=SC2086  # several files
  check ${groups[$group]} &
done
wait
grep -hv '^passed' "$results"/*
passed=$(cat "$results"/* | awk '/^passed / { n += $2 } END { print n + 0 }')
echo "$passed passed, $((${#files[@]} - passed)) failed"
[[ $passed -eq ${#files[@]} ]]
