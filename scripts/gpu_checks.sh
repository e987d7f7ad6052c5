#!/usr/bin/env bash
# Checks that need a real GPU, in four parts of under ten minutes each, which share a build folder:
#
#   scripts/gpu_checks.sh --pack               fetches what a bare machine lacks into .deps, and prints the calls to make there
#   scripts/gpu_checks.sh --part 1 [FOLDER]    build, and all test suites on the card
#   scripts/gpu_checks.sh --part 2 [FOLDER]    compute-sanitizer, the emulator's results against the card's, losses (CPU, graphs, fp8), NCCL
#   scripts/gpu_checks.sh --part 3 [FOLDER]    kernels against roofline and PyTorch
#   scripts/gpu_checks.sh --part 4 [FOLDER]    GPT-2 124M, with graphs, without and in fp8, against PyTorch, and llm.c's recipe
#
# Each writes FOLDER/part-N.md (default: gpu-report), whose tables are for bench/RESULTS.md. Needs CUDA, cuDNN, NCCL, a C++20
# compiler, meson and ninja; PyTorch for comparisons. Other libraries are taken from $LOCKSTEP_DEPS (default .deps) where the machine
# has none. A step that cannot run, fails or takes too long is a line in the report and no more. BUDGET: seconds of a part (560).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
deps=${LOCKSTEP_DEPS:-$PWD/.deps}
build=${BUILD:-build-gpu}

pack() {
  local wanted=(doctest-dev libcli11-dev libfmt-dev nlohmann-json3-dev zlib1g-dev libpng-dev libjpeg-dev libsodium-dev libeigen3-dev) packages folder
  mapfile -t packages < <(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "${wanted[@]}" |
    grep -E '^(doctest|libcli11|libfmt|nlohmann|zlib1g|libpng|libjpeg|libsodium|libeigen3|pkg-config|pkgconf|libpkgconf)' | sort -u)
  [[ ${#packages[@]} -gt 0 ]] || { echo "apt knows no packages here: apt-get update, on Debian or Ubuntu" >&2; exit 1; }
  rm -rf "$deps" && mkdir -p "$deps/debs"
  (cd "$deps/debs" && apt-get download -qq "${packages[@]}") || { echo "the packages could not be fetched: is there a network?" >&2; exit 1; }
  for folder in "$deps"/debs/*.deb; do dpkg-deb -x "$folder" "$deps"; done
  rm -rf "$deps/debs" "$deps"/usr/share/{doc,man,cmake,lintian,locale}
  find "$deps" -type l -lname '/*' -delete  # links to files that the GPU machine may not have
  echo "$deps holds $(du -sm "$deps" | cut -f1) MiB. Take the repository with it to the machine, and there, one after the other:"
  for part in 1 2 3 4; do echo "  scripts/gpu_checks.sh --part $part"; done
}

case ${1:-} in
  --pack) pack; exit ;;
  --part) [[ ${2:-} =~ ^[1-4]$ ]] || { echo "expected --part 1, 2, 3 or 4, got '${2:-}'" >&2; exit 2; } ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
part=$2 out=${3:-gpu-report}
mkdir -p "$out/part-$part" && out=$(cd "$out" && pwd) || exit
report=$out/part-$part.md logs=$out/part-$part
started=$SECONDS failures=0 budget=${BUDGET:-560}
: >"$report"

left() { echo $((budget - (SECONDS - started))); }
say() { printf '%s\n' "$*" | tee -a "$report"; }

# step NAME SECONDS COMMAND...: writes its output to NAME.log, and a line to the report. COMMAND may be an exported
# function.
step() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  if (($(left) < 10)); then
    say "| $name | not run: no time left | |"
    failures=$((failures + 1))
    return 1
  fi
  ((limit > $(left))) && limit=$(left)
  timeout -k 5 "$limit" bash -c '"$@"' step "$@" >"$logs/$name.log" 2>&1
  code=$?
  local what="failed ($code)"
  ((code == 0)) && what=passed
  ((code == 77)) && what="skipped: $(tail -1 "$logs/$name.log" | cut -c1-120)"
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
  export PKG_CONFIG_SYSROOT_DIR=$deps CMAKE_PREFIX_PATH=$deps/usr CPLUS_INCLUDE_PATH=$deps/usr/include:$(echo "$deps"/usr/include/*-linux-gnu):${CPLUS_INCLUDE_PATH:-}
  have pkg-config || export PATH=$PATH:$deps/usr/bin
fi

say "# Part $part of the checks on a card, $(date -u '+%Y-%m-%d %H:%M') UTC"
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

suites="tests/test_cuda tests/test_cuda_steps tests/test_tensor tests/test_autograd tests/test_nn tests/test_optim"
gpt=$build/apps/gpt
configured() {  # folder, meson options
  [[ -f $1/build.ninja ]] || meson setup "$@" --buildtype release -Dunity=on -Dunity_size=20 -Donednn=auto -Dmpi=disabled
}
export -f configured
export build out gpt logs

# Builds the targets of a part in the folder shared by all parts; ends the part if that fails.
needs() {
  if ! step configure 90 configured "$build" -Dcuda=enabled -Dgpu_arch="${arch:-90a}" || ! step build 480 ninja -C "$build" "$@"; then
    say ""
    say "What the build said:"
    printf '```\n%s\n```\n' "$(grep -hE -A4 'ERROR|FAILED|error:' "$logs"/{configure,build}.log 2>/dev/null | head -40)" >>"$report"
    exit 1
  fi
}

part_1() {
  needs $suites tests/golden tests/cudnn_plans apps/gpt apps/lockstep
  step env 30 "$build/apps/lockstep" env
  local suite
  for suite in $suites; do LOCKSTEP_TEST_DEVICE=cuda step "$(basename "$suite")" 120 "$build/$suite"; done
  LOCKSTEP_TEST_DEVICE=cuda step golden 60 "$build/tests/golden"
  step cudnn_plans 60 "$build/tests/cudnn_plans"
  # Convolutions and attention by cuDNN (the log names its engines, and where our kernel had to run) and by our kernels:
  # with Hopper's own tensor core instructions, against which the tests compare the kernels for all GPUs, and without.
  for cudnn in log 0; do
    LOCKSTEP_CUDNN=$cudnn step "attention-cudnn-$cudnn" 60 "$build/tests/test_cuda" -tc="*attention*"
    LOCKSTEP_CUDNN=$cudnn step "conv-cudnn-$cudnn" 60 "$build/tests/test_cuda" -tc="*convolution*"
    LOCKSTEP_CUDNN=$cudnn LOCKSTEP_TEST_DEVICE=cuda step "conv-tensor-cudnn-$cudnn" 60 "$build/tests/test_tensor" -tc="*conv*"
  done
  LOCKSTEP_CUDNN=0 LOCKSTEP_WGMMA=0 step attention-mma 60 "$build/tests/test_cuda" -tc="*attention*"
}

train() {  # name, device, more options
  rm -rf "$logs/run-$1"
  "$gpt" train --device "$2" --steps 20 --model gpt:2x64x2 --context 64 --batch 4 --dropout 0.1 --eval-every 100 --out "$logs/run-$1" --json "${@:3}"
}
compare() {  # two names, the allowed difference of losses
  python3 - "$logs" "$@" <<'PYTHON'
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/run-{d}/metrics.jsonl")] for d in sys.argv[2:4])
worst = max(abs(x - y) for x, y in zip(a, b))
print(f"largest difference of {len(a)} losses: {worst:.2e}")
sys.exit(not (len(a) == len(b) > 0 and worst <= float(sys.argv[4])))
PYTHON
}
losses_cpu_card() { train cpu cpu && train cuda cuda && compare cpu cuda 1e-3; }
losses_graphs() { train graphs cuda --precision bf16 && train no-graphs cuda --precision bf16 --no-graph && compare graphs no-graphs 0; }
losses_fp8() { train fp8 cuda --precision fp8 && compare graphs fp8 0.05; }
emulator_card() {
  configured build-emulator -Dcuda=simulated && ninja -C build-emulator tests/cuda_dump || return
  build-emulator/tests/cuda_dump "$logs/emulator.safetensors" && "$build/tests/cuda_dump" "$logs/card.safetensors" &&
    "$build/tests/cuda_dump" --compare "$logs/emulator.safetensors" "$logs/card.safetensors"
}
part_2() {
  needs tests/test_cuda tests/cuda_dump apps/gpt apps/lockstep
  local sanitizer tool plan
  sanitizer=$(command -v compute-sanitizer || echo "$cuda/bin/compute-sanitizer")
  for tool in memcheck racecheck initcheck synccheck; do
    if [[ -x $sanitizer ]]; then step "sanitizer-$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$build/tests/test_cuda" -tce="*graph*"
    else skip "sanitizer-$tool" "no compute-sanitizer in the toolkit"; fi
  done
  export -f train compare losses_cpu_card losses_graphs losses_fp8 emulator_card
  step losses-cpu-card 60 losses_cpu_card
  step losses-graphs 60 losses_graphs
  step losses-fp8 60 losses_fp8
  step emulator-card 200 emulator_card
  # NCCL: one rank; two replicas, stages and so on (on two GPUs, or sharing one through the host); then two processes on
  # one GPU that NCCL takes for two hosts: replicas, stages, tensor and context parallelism, with step graphs ("graphs"
  # in the result).
  local small=("$gpt" train --device cuda --steps 5 --model gpt:2x32x2 --context 32 --batch 2 --json)
  step ranks-1 60 "$build/apps/lockstep" run -n 1 -- "${small[@]}"
  for plan in dp2 pp2 tp2 cp2; do
    step "ranks-2-$plan" 60 "$build/apps/lockstep" run -n 2 -- "${small[@]}" --plan "$plan"
    step "nccl-one-card-$plan" 90 "$build/apps/lockstep" run -n 2 -- bash -c 'NCCL_HOSTID=host$RANK NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=1 exec "$@"' -- "${small[@]}" --plan "$plan"
  done
}

sees_card() { python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; }
part_3() {
  needs bench/bench_cuda
  if step bench_cuda 120 "$build/bench/bench_cuda"; then
    if sees_card; then step pytorch 150 python3 bench/cuda_compare.py "$logs/bench_cuda.log"; else skip pytorch "no PyTorch that sees the card"; fi
  fi
  # Convolutions and attention again by our kernels, for comparison.
  for cudnn in 1 0; do
    LOCKSTEP_CUDNN=$cudnn step "bench-conv-cudnn-$cudnn" 40 "$build/bench/bench_cuda" --only conv2d
    LOCKSTEP_CUDNN=$cudnn step "bench-attention-cudnn-$cudnn" 40 "$build/bench/bench_cuda" --only attention
  done
  LOCKSTEP_CUDNN=0 LOCKSTEP_WGMMA=0 step bench-attention-mma 40 "$build/bench/bench_cuda" --only attention
}

part_4() {
  needs apps/gpt
  python3 bench/cuda_gpt.py --tokenizer "$logs/tokenizer"
  local run=("$gpt" train --device cuda --model gpt:12x768x12 --context 1024 --tokenizer "$logs/tokenizer" --eval-every 1000 --eval-batches 1 --json)
  step gpt2-124m 90 "${run[@]}" --precision bf16 --batch 16 --steps 25
  step gpt2-124m-no-graph 60 "${run[@]}" --precision bf16 --batch 16 --steps 25 --no-graph
  step gpt2-124m-fp8 60 "${run[@]}" --precision fp8 --batch 16 --steps 25
  # The recipe of llm.c: 524,288 tokens per step.
  step gpt2-124m-recipe 90 "${run[@]}" --precision bf16 --batch 64 --accumulate 8 --steps 5 --warmup 1 --lr 6e-4
  if sees_card; then
    step pytorch-gpt2 200 python3 bench/cuda_gpt.py --batch 16 --steps 20
    step pytorch-gpt2-recipe 120 python3 bench/cuda_gpt.py --batch 64 --accumulate 8 --steps 3 --only compiled
  else
    skip pytorch-gpt2 "no PyTorch that sees the card"
  fi
}

"part_$part"
say ""
for log in env losses-{cpu-card,graphs,fp8} emulator-card nccl-one-card-{dp2,pp2,tp2,cp2} {conv,attention}-cudnn-log bench_cuda pytorch bench-{conv,attention}-cudnn-{1,0} bench-attention-mma gpt2-124m{,-no-graph,-fp8,-recipe} pytorch-gpt2{,-recipe}; do
  [[ -s $logs/$log.log ]] || continue
  if [[ $log == pytorch ]]; then printf '## %s\n\n%s\n\n' "$log" "$(cat "$logs/$log.log")" >>"$report"
  else printf '## %s\n\n```\n%s\n```\n\n' "$log" "$(tail -45 "$logs/$log.log")" >>"$report"; fi
done
for log in "$logs"/*.log; do
  if grep -qE 'ERROR|FAILED|error:' "$log"; then
    printf '## what %s said\n\n```\n%s\n```\n\n' "$(basename "$log")" "$(grep -E 'ERROR|FAILED|error:|Error' "$log" | head -15)" >>"$report"
  fi
done
say "$failures steps did not pass, $((SECONDS - started)) s; the report is $report"
exit $((failures > 0))
