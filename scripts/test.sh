#!/usr/bin/env bash
# Builds everything and runs every test. The last line is "N passed, N failed".
#   scripts/test.sh [--changed]
# --changed: only suites affected by the differences from main, for some seconds (tests/changed.py).
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -gt 1 || "${1:---changed}" != --changed ]]; then echo "expected --changed or nothing, got: $*" >&2; exit 2; fi
if [[ "${1:-}" == --changed && -f build/build.ninja ]]; then exec python3 tests/changed.py build; fi
scripts/build.sh
exec python3 tests/run_all.py build
