#!/usr/bin/env bash
# Trains a small GPT on this repository's sources and docs, on two ranks for about a minute and a half, and generates
# text.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh apps/gpt
seconds=${DEMO_SECONDS:-95}
shape=(--model gpt:4x128x4 --context 128 --batch 8 --lr 2e-3 --warmup 50 --seed 1)

# Times twenty steps to find out how many fit.
train=(build/apps/gpt train --ranks 2 "${shape[@]}")
probe=$("${train[@]}" --steps 20 --json | tail -1)
steps=$(python3 -c 'import json, sys; r = json.loads(sys.argv[1][sys.argv[1].index("{"):]); print(max(100, min(4000, int(float(sys.argv[2]) * r["tokens_per_second"] / (16 * 128)) // 50 * 50)))' "$probe" "$seconds")

echo "A GPT with 4 layers learns this repository's sources and docs, byte by byte, on 2 ranks: $steps steps."
rm -rf runs/demo
"${train[@]}" --steps "$steps" --eval-every $((steps / 8)) --out runs/demo
echo
echo "What it writes after \"// \" and after \"Tensor softmax(\":"
echo "------------------------------------------------------------"
build/apps/gpt sample runs/demo --prompt '// ' --tokens 400 --temperature 0.7
echo "------------------------------------------------------------"
build/apps/gpt sample runs/demo --prompt 'Tensor softmax(' --tokens 400 --temperature 0.7
echo "------------------------------------------------------------"
echo "More: build/apps/gpt sample runs/demo --prompt \"#include\" --tokens 400     (build/apps/gpt --help)"
echo "Ranks were threads here. As processes, here or on many machines: scripts/build.sh, then build/apps/lockstep run -n 2 -- build/apps/gpt train"
