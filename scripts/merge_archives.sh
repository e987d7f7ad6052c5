#!/usr/bin/env bash
# Merges static libraries (thin archives, as meson creates them) into one.
#   scripts/merge_archives.sh OUTPUT.a INPUT.a ...
set -euo pipefail
output=$1
shift
rm -f "$output"
for archive in "$@"; do ar tP "$archive"; done | xargs ar csrD "$output"
