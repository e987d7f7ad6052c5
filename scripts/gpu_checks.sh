#!/usr/bin/env bash
# All that only a real card can tell, in one command of under 10 minutes: the test suites on the card, compute-sanitizer,
# the emulator's results against the card's, NCCL, and benchmarks against PyTorch. Writes a dated report.
#
#   scripts/gpu_checks.sh [REPORT_FOLDER]      default: gpu-report-DATE
#
# Needs CUDA, a C++20 compiler, meson and ninja; PyTorch for the comparison. Libraries that the machine does not have
# (doctest, CLI11, fmt, nlohmann_json, zlib, libpng, libjpeg-turbo, libsodium, Eigen; unpacked Debian packages) are taken from $LOCKSTEP_DEPS, default
# .deps in the repository. A step that cannot run, fails or takes too long is a line in the report and no more.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
out=${1:-gpu-report-$(date +%Y-%m-%d-%H%M)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
report=$out/report.md
build=${BUILD:-build-gpu}
deps=${LOCKSTEP_DEPS:-$PWD/.deps}
started=$SECONDS
failures=0
budget=${BUDGET:-560}  # seconds for all

left() { echo $((budget - (SECONDS - started))); }
say() { printf '%s\n' "$*" | tee -a "$report"; }

# step NAME SECONDS COMMAND...: its output goes to NAME.log, a line to the report.
step() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  if (($(left) < 10)); then
    say "| $name | not run: no time left | |"
    failures=$((failures + 1))
    return 1
  fi
  ((limit > $(left))) && limit=$(left)
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  local what="failed ($code)"
  ((code == 0)) && what=passed
  ((code == 77)) && what="skipped: $(tail -1 "$out/$name.log" | cut -c1-120)"
  ((code == 124)) && what="stopped after $limit s"
  ((code != 0 && code != 77)) && failures=$((failures + 1))
  say "| $name | $what | $((SECONDS - begin)) s |"
  return $code
}
have() { command -v "$1" >/dev/null 2>&1; }
skip() { say "| $1 | skipped: $2 | |"; }

cuda=${CUDA_HOME:-/usr/local/cuda}
export PATH=$cuda/bin:$PATH LD_LIBRARY_PATH=$cuda/lib64:${LD_LIBRARY_PATH:-}
if [[ -d $deps ]]; then
  for folder in "$deps"/usr/lib/*-linux-gnu; do
    export LD_LIBRARY_PATH=$folder:$LD_LIBRARY_PATH LIBRARY_PATH=$folder:${LIBRARY_PATH:-}
    export PKG_CONFIG_PATH=$folder/pkgconfig:$deps/usr/share/pkgconfig:${PKG_CONFIG_PATH:-}
  done
  export PKG_CONFIG_SYSROOT_DIR=$deps CMAKE_PREFIX_PATH=$deps/usr CPLUS_INCLUDE_PATH=$deps/usr/include:${CPLUS_INCLUDE_PATH:-}
fi

say "# Checks on a card, $(date -u '+%Y-%m-%d %H:%M') UTC"
say ""
say "- commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', with changes')"
if have nvidia-smi; then
  say "- $(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>&1 | paste -sd';')"
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')
else
  say "- no nvidia-smi: the tests below will say why there is no device"
fi
[[ ${arch:-} == 90 ]] && arch=90a
have nvcc && say "- $(nvcc --version | tail -2 | head -1)"
say ""
say "| step | result | time |"
say "|---|---|---|"

# --- build, for this card only ---
if ! step configure 60 meson setup "$build" --buildtype release -Dcuda=enabled -Dgpu_arch="${arch:-90a}" -Donednn=auto -Dmpi=disabled; then
  [[ -f $build/build.ninja ]] || { say ""; say "Nothing could be built: see configure.log."; exit 1; }
fi
suites="tests/test_cuda tests/test_tensor tests/test_autograd tests/test_nn tests/test_optim"
step build 300 ninja -C "$build" $suites tests/golden tests/cuda_dump tests/cudnn_plans apps/gpt apps/lockstep bench/bench_cuda
step env 30 "$build/apps/lockstep" env

# --- tests on the card ---
for suite in $suites; do
  name=$(basename "$suite")
  LOCKSTEP_TEST_DEVICE=cuda step "$name" 90 "$build/$suite"
done
LOCKSTEP_TEST_DEVICE=cuda step golden 60 "$build/tests/golden"
step cudnn_plans 60 "$build/tests/cudnn_plans"
# Convolutions by cuDNN (the log says which engine, and where our kernel had to) and by our kernels.
for cudnn in log 0; do
  LOCKSTEP_CUDNN=$cudnn step "conv-cudnn-$cudnn" 60 "$build/tests/test_cuda" -tc="*convolution*"
  LOCKSTEP_CUDNN=$cudnn LOCKSTEP_TEST_DEVICE=cuda step "conv-tensor-cudnn-$cudnn" 60 "$build/tests/test_tensor" -tc="*conv*"
done

# --- compute-sanitizer ---
sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
for tool in memcheck racecheck initcheck synccheck; do
  if [[ -x $sanitizer ]]; then step "sanitizer-$tool" 45 "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$build/tests/test_cuda" -tce="*graph*"
  else skip "sanitizer-$tool" "no compute-sanitizer in the toolkit"; fi
done

# --- a training run: the card's losses against the CPU's ---
train() {
  local device=$1 folder=$2
  shift 2
  rm -rf "$folder"
  "$build/apps/gpt" train --device "$device" --steps 20 --model gpt:2x64x2 --context 64 --batch 4 --eval-every 100 --out "$folder" --json "$@"
}
compare_losses() {
  train cpu "$out/run-cpu" && train cuda "$out/run-cuda" && python3 - "$out" <<'PYTHON'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/run-{d}/metrics.jsonl")] for d in ("cpu", "cuda"))
worst = max(abs(x - y) for x, y in zip(a, b))
print(f"largest difference of {len(a)} losses: {worst:.2e}")
sys.exit(not (len(a) == len(b) > 0 and worst < 1e-3))
PYTHON
}
export -f train compare_losses
export build out
step losses-cpu-card 60 bash -c compare_losses

# --- the emulator's numbers against the card's, where both exist ---
emulator_card() {
  [[ -f build-emulator/build.ninja ]] || meson setup build-emulator --buildtype release -Dcuda=simulated -Donednn=auto -Dmpi=disabled || return
  ninja -C build-emulator tests/cuda_dump && build-emulator/tests/cuda_dump "$out/emulator.safetensors" && "$build/tests/cuda_dump" "$out/card.safetensors" &&
    "$build/tests/cuda_dump" --compare "$out/emulator.safetensors" "$out/card.safetensors"
}
export -f emulator_card
step emulator-card 150 bash -c emulator_card

# --- NCCL: one rank, and two (on two cards, or sharing one through the host) ---
for ranks in 1 2; do
  step "ranks-$ranks" 60 "$build/apps/lockstep" run -n "$ranks" -- "$build/apps/gpt" train --device cuda --steps 5 --model gpt:1x32x2 --context 32 --batch 2 --json
done
# NCCL between two processes on one card, which to it are two hosts.
step nccl-one-card 120 "$build/apps/lockstep" run -n 2 -- bash -c 'NCCL_HOSTID=host$RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=1 exec "$@"' -- \
  "$build/apps/gpt" train --device cuda --steps 5 --model gpt:1x32x2 --context 32 --batch 2 --json

# --- speed ---
if step bench_cuda 90 "$build/bench/bench_cuda"; then
  cp "$out/bench_cuda.log" "$out/bench_cuda.jsonl"
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then step pytorch 90 python3 bench/cuda_compare.py "$out/bench_cuda.jsonl"
  else skip pytorch "no PyTorch that sees the card"; fi
fi
# Convolutions once more by our kernels, to compare.
for cudnn in 1 0; do LOCKSTEP_CUDNN=$cudnn step "bench-conv-cudnn-$cudnn" 30 "$build/bench/bench_cuda" --only conv2d; done
step gpt2-124m 60 "$build/apps/gpt" train --device cuda --precision bf16 --model gpt:12x768x12 --context 1024 --batch 16 --steps 20 --eval-every 1000 --eval-batches 1 --json

say ""
for log in bench_cuda bench-conv-cudnn-1 bench-conv-cudnn-0 conv-cudnn-log pytorch gpt2-124m losses-cpu-card emulator-card; do
  [[ -s $out/$log.log ]] || continue
  say "## $log"
  say ""
  if [[ $log == pytorch ]]; then cat "$out/$log.log" >>"$report"; else printf '```\n%s\n```\n' "$(tail -45 "$out/$log.log")" >>"$report"; fi
  say ""
done
for log in "$out"/*.log; do
  if grep -qE 'ERROR|FAILED|error:' "$log"; then
    printf '## what %s said\n\n```\n%s\n```\n\n' "$(basename "$log")" "$(grep -E 'ERROR|FAILED|error:|Error' "$log" | head -15)" >>"$report"
  fi
done
say "$failures steps did not pass, $((SECONDS - started)) s; the report is $report"
exit $((failures > 0))
