#!/usr/bin/env bash
# Builds everything and runs every test. The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh
exec python3 tests/run_all.py build
