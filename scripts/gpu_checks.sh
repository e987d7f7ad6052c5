#!/usr/bin/env bash
# Checks that need a real GPU, as one archive for a machine that has one and little else.
#
#   scripts/gpu_checks.sh --bundle [--text FILE] [--digits FOLDER] [--out ARCHIVE]
#
#   --text FILE      text to train on (default: the pages in docs/)
#   --digits FOLDER  MNIST's IDX files to train on (default: digits that the program draws)
#   --out ARCHIVE    default: $BUILD/gpu-checks.tar.xz
#
# Builds for compute capability 9.0 and any x86-64-v3 processor into $BUILD (default: build-bundle), trains small models on this
# machine's CPU as the result that the card has to reach, and packs stripped programs, the libraries that a bare machine lacks, golden
# values, text and digits. The archive has at most 40 MiB. CUDA's own libraries stay outside: a toolkit or PyTorch brings them. On the machine:
#
#   python3 -c 'import tarfile; tarfile.open("gpu-checks.tar.xz").extractall()'      # or: tar xf gpu-checks.tar.xz
#   python3 gpu-checks/check.py                                                      # eight minutes; --help says more
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build-bundle} text='' digits='' archive='' most=$((${BUNDLE_MIB:-40} << 20))
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
[[ ${1:-} == --bundle ]] || usage
shift
while [[ $# -gt 0 ]]; do
  case $1 in
    --text | --digits | --out) [[ -n ${2:-} ]] || { echo "expected a value after $1" >&2; exit 2; } ;;
    *) echo "expected --text, --digits or --out, got $1" >&2; exit 2 ;;
  esac
  case $1 in
    --text) [[ -f $2 ]] || { echo "--text: there is no file $2" >&2; exit 2; }; text=$(realpath "$2") ;;
    --digits) [[ -d $2 ]] || { echo "--digits: there is no folder $2" >&2; exit 2; }; digits=$(realpath "$2") ;;
    --out) archive=$(realpath -m "$2") ;;
  esac
  shift 2
done
archive=${archive:-$(realpath -m "$build")/gpu-checks.tar.xz}

suites=(test_cuda test_cuda_steps test_tensor test_autograd test_linear_algebra test_nn test_recurrent test_optim test_vision test_operations test_layers test_optimizers test_spectral test_generation test_lora test_sparse_attention)
programs=(apps/gpt apps/cnn apps/lockstep bench/bench_cuda tests/golden "${suites[@]/#/tests/}")
source scripts/compiler_cache.sh
if [[ ! -f $build/build.ninja ]]; then
  meson setup "$build" --buildtype release -Dunity=on -Dunity_size=20 -Dcuda=enabled -Dgpu_arch=90a -Dcpu=x86-64-v3 -Donednn=disabled -Dmpi=disabled -Dio_uring=disabled -Dhttp=disabled
fi
ninja -C "$build" "${programs[@]}"

# Copies what the archive holds. A program's libraries are those of this system, but for glibc's, which every system has and which must fit
# its kernel, and for the driver's and CUDA's, which are large. The compiler's have a folder of their own: a machine may have newer ones,
# which its profilers need.
folder=$build/bundle/gpu-checks
rm -rf "$build/bundle"
mkdir -p "$folder"/{bin,lib/compiler,bench}
for program in "${programs[@]}"; do
  strip -o "$folder/bin/${program##*/}" "$build/$program"
  ldd "$build/$program" | awk '/=> \//{print $1, $3}'
done | sort -u >"$build/bundle/libraries"
if grep -q 'not found' <(for program in "${programs[@]}"; do ldd "$build/$program"; done); then
  echo "a library of the programs is missing here:" >&2
  for program in "${programs[@]}"; do ldd "$build/$program"; done | grep 'not found' | sort -u >&2
  exit 1
fi
outside=()
while read -r name path; do
  case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux* | libresolv.so.*) ;;
    libstdc++.so.* | libgcc_s.so.*) strip -o "$folder/lib/compiler/$name" "$path" ;;
    libcudart.so.*) strip -o "$folder/lib/$name" "$path" ;;
    libcu* | libnv* | libnccl*) outside+=("$name") ;;
    *) strip -o "$folder/lib/$name" "$path" ;;
  esac
done <"$build/bundle/libraries"
# Golden files lie as in the sources, as adapters and suites name folders of other extensions. Of the models, those that test_lora reads.
for golden in tests/golden extensions/*/tests/golden; do
  mkdir -p "$folder/${golden%/*}"
  cp -r "$golden" "$folder/$golden"
done
hugging_face=$folder/extensions/hugging_face/tests/golden
rm -r "$hugging_face"/{models,tokenizer}
mkdir "$hugging_face/models"
cp -r extensions/hugging_face/tests/golden/models/{llama_linear,llama_main,window_qwen2} "$hugging_face/models"
cp scripts/gpu_checks/check.py "$folder"
cp bench/cuda_gpt.py bench/cuda_compare.py "$folder/bench"
if [[ -n $text ]]; then cp "$text" "$folder/text.txt"; else cat docs/*.md >"$folder/text.txt"; fi
if [[ -n $digits ]]; then cp -r "$digits" "$folder/digits" && chmod -R u+w "$folder/digits"; fi
python3 bench/cuda_gpt.py --tokenizer "$folder/tokenizer"

# What the card has to reach: the same training on this CPU. "@" stands for the archive's folder.
python3 - "$folder" "$(git describe --always --dirty 2>/dev/null || echo unknown)" "${digits:+@/digits}" "${suites[*]}" "${outside[*]}" <<'PYTHON'
import json, pathlib, subprocess, sys
folder, commit, digits, suites, libraries = sys.argv[1:]
folder = pathlib.Path(folder).resolve()
training = {"gpt": {"text": "@/text.txt", "model": "gpt:4x128x4", "steps": 300, "warmup": 50, "eval-every": 1000000},
            "cnn": {"epochs": 1, "batch": 32, "eval-every": 1000000, **({"data": digits} if digits else {"samples": 4000})}}
expected = {}
for program, options in training.items():
    command = [folder / "bin" / program, "train", "--json", "--device", "cpu"]
    for key, value in options.items():
        command += [f"--{key}", str(value).replace("@", str(folder))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} does not train here: {done.stderr}")
    expected[program] = json.loads(done.stdout.strip().splitlines()[-1])
    print(program, "on this CPU:", {k: v for k, v in expected[program].items() if k in ("loss", "val_loss", "test_accuracy", "seconds")})
(folder / "info.json").write_text(json.dumps({"commit": commit, "suites": suites.split(), "libraries": libraries.split(), "training": training, "expected": expected}, indent=1))
PYTHON

# The programs share most of their code, so the dictionary is as large as all of them.
bytes=$(du -sb "$folder" | cut -f1)
mib=$(((bytes >> 20) + 8))
tar -C "$build/bundle" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - gpu-checks |
  python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(sys.stdin.buffer, lzma.open(sys.stdout.buffer, "w", filters=[{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": int(sys.argv[1]) << 20}]))' "$mib" >"$archive"
size=$(stat -c %s "$archive")
echo "$archive: $((size >> 10)) KiB, of $((bytes >> 20)) MiB"
if ((size > most)); then
  echo "the archive is larger than $((most >> 20)) MiB: leave out a program, or look for a library that should stay outside (ls -lS $folder/lib $folder/bin)" >&2
  exit 1
fi
