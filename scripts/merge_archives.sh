#!/usr/bin/env bash
# Makes one static library of others (thin archives, as meson leaves them).
#   scripts/merge_archives.sh OUTPUT.a INPUT.a ...
set -euo pipefail
output=$1
shift
rm -f "$output"
for archive in "$@"; do ar tP "$archive"; done | xargs ar csrD "$output"
