#!/usr/bin/env python3
"""scripts/gpu_checks.sh and the script that its archive holds, with stand-ins for programs, tools and PyTorch: a run on a card may not be
repeatable.

tests/gpu_checks.py        ends with "N passed, N failed"
"""
import csv
import fnmatch
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

from programs import check, finish

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT, CHECK = ROOT / "scripts/gpu_checks.sh", ROOT / "scripts/gpu_checks/check.py"

# Stands in for every program: of ours, of the toolkit and of a build. FAKE is a JSON object that says how it behaves.
STAND_IN = f"#!{sys.executable} -IS\n" + r'''import json, os, pathlib, shutil, sys, time
fake, name, args = json.loads(os.environ.get("FAKE", "{}")), pathlib.Path(sys.argv[0]).name, sys.argv[1:]
def value(option, default=""):
    return args[args.index(option) + 1] if option in args else default
def train():
    steps, out, precision = int(value("--steps", "10")), value("--out"), value("--precision", "f32")
    graphs = "none: they are turned off" if "--no-graph" in args else "1 shape recorded, 3 of 4 steps replayed"
    off = fake.get("differs", 0) if "--no-graph" in args or "--plan" in args else 0
    if out:
        pathlib.Path(out).mkdir(parents=True, exist_ok=True)
        pathlib.Path(out, "metrics.jsonl").write_text("".join(json.dumps({"step": i, "loss": 3 / (i + 1) + off}) + "\n" for i in range(steps)))
    assert "--text" not in args or os.path.exists(value("--text")), args
    ms = fake.get("ms", 25)
    print(json.dumps({"loss": 2.5, "val_loss": 2.0 + fake.get(precision, 0), "test_accuracy": 0.97, "seconds": 1 + steps * ms / 1e3, "peak_memory_mib": 2048, "graphs": graphs}))
has_compiler = "gpu-checks/lib/compiler" in os.environ.get("LD_LIBRARY_PATH", "")
if name in ("ncu", "nsys", "compute-sanitizer"):
    assert has_compiler == ("old_compiler" in fake)
if name == "lockstep" and args[0] == "env":
    print("cpu: 2 cores\ncuda: runtime 13.0\n" + (f"no device: {fake['no_device']}" if "no_device" in fake else "cuda:0 H200, compute capability 9.0"))
elif name == "lockstep" and args[0] == "--version":
    sys.exit("old_compiler" in fake and not has_compiler)
elif name == "lockstep" and args[0] == "roofline":
    print(json.dumps({"seconds": 0.0255, "launches": 290}))
elif name == "lockstep" and args[0] == "run":
    os.environ["RANK"] = "0"
    os.execvp(args[4], args[4:])
elif name in ("gpt", "cnn"):
    train()
elif name == "golden":
    assert os.environ["LOCKSTEP_TEST_DEVICE"] == "cuda" and [os.path.relpath(a, pathlib.Path(sys.argv[0]).parent) for a in args] == ["../tests/golden", "../extensions/tensor/tests/golden"]
    print("7 passed, 0 failed")
elif name.startswith("test_"):
    cases = fake.get("cases", ["cuda: attention and its gradient", "one, two * three"])
    if args == ["-ltc"]:
        print("[doctest] listing all test case names\n" + "=" * 79 + "\n" + "\n".join(cases) + "\n" + "=" * 79 + "\n[doctest] unskipped test cases: 2")
    else:
        if "hangs" in args[0]:
            time.sleep(60)
        assert ("extensions/tensor/" in os.environ["LOCKSTEP_GOLDEN_DIR"]) == (name == "test_tensor") and os.path.isdir(os.environ["LOCKSTEP_GOLDEN_DIR"])
        bad = "broken" in args[0]
        print(f"[doctest] test cases: 1 | {1 - bad} passed\n" + ("ERROR: CHECK( 1 == 2 )" if bad else ""))
        sys.exit(bad)
elif name == "bench_cuda":
    print(json.dumps({"name": "copy bf16", "ms": 0.28, "gbps": 3843, "tflops": 0, "of_bound": 0.8}))
elif name == "nvidia-smi":
    print("NVIDIA H200, 580.1, 143771 MiB, 1980 MHz")
elif name == "compute-sanitizer":
    print("========= COMPUTE-SANITIZER\n[doctest] test cases: 3 | 3 passed")
elif name == "ncu":
    print('==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
    if fake.get("no_counters"):
        print("==ERROR== ERR_NVGPUCTRPERM")
        sys.exit(1)
    for step in range(3):
        for kernel, us in (("nvjet_sm90_x", "1,100.5"), ("void lockstep::<unnamed>::norm_kernel<1>(int, int)", "28"), ("void step_all_kernel<a>(x)", "900"), ("void step_all_kernel<b>(x)", "9")):
            print(f'"0","{kernel}","gpu__time_duration.sum","us","{us}"')
elif name == "nsys":
    if args[0] == "stats":
        print('Processing\nStart (ns),Duration (ns),Name')
        for step in range(3):
            print('1,5000,"void softmax_kernel<1>(int)"\n1,100,"[CUDA memcpy Host-to-Device]"\n2,7000,"void step_all_kernel<a>(x)"')
elif name == "ninja":
    here = pathlib.Path(__file__)
    for program in args[2:]:
        target = pathlib.Path(args[1]) / program
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here, target)
elif name == "meson":
    pathlib.Path(args[1]).mkdir(parents=True, exist_ok=True)
    pathlib.Path(args[1], "build.ninja").write_text(" ".join(args))
elif name == "strip":
    shutil.copy(args[2], args[1])
elif name == "ldd":
    lib = fake["libraries"]
    print(f"\tlinux-vdso.so.1 (0x1)\n\tlibstdc++.so.6 => {lib}/libstdc++.so.6 (0x1)\n\tlibfmt.so.9 => {lib}/libfmt.so.9 (0x1)\n\tlibcudart.so.13 => {lib}/libcudart.so.13 (0x1)\n\tlibcublasLt.so.13 => {lib}/libcublasLt.so.13 (0x1)\n\tlibc.so.6 => {lib}/libc.so.6 (0x1)")
else:
    sys.exit(f"no stand-in for {name}")
'''
PROGRAMS = ["gpt", "cnn", "lockstep", "golden", "bench_cuda", "test_cuda", "test_tensor"]
TORCH = "__version__ = '2.11'\nclass cuda:\n    is_available = staticmethod(lambda: True)\n"
GPT_PY = "import json\nfor kind, ms in (('eager', 46), ('compiled', {compiled})): print(json.dumps({{'name': 'PyTorch ' + kind, 'ms': ms, 'peak_gib': 14.5}}))\n"
COMPARE_PY = "print('PyTorch 2.11, H200\\n\\n| case | ours ms |\\n|---|---|\\n| copy bf16 | 0.28 |')\n"
INFO = {"commit": "abc1234", "suites": ["test_cuda", "test_tensor"], "libraries": ["libcuOne.so.13"], "expected": {"gpt": {"val_loss": 2.0}, "cnn": {"test_accuracy": 0.97}},
        "training": {"gpt": {"text": "@/text.txt", "steps": 30}, "cnn": {"epochs": 1}}}


def write(path, text, executable=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if executable:
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def unpacked(d, compiled=33.8):
    """An archive of stand-ins, and a toolkit beside it."""
    archive, toolkit = d / "gpu-checks", d / "toolkit"
    for name in PROGRAMS:
        write(archive / "bin" / name, STAND_IN, True)
    for name in ("compute-sanitizer", "ncu", "nsys", "nvidia-smi"):
        write(toolkit / "bin" / name, STAND_IN, True)
    write(toolkit / "lib64/libcuOne.so.13", "")
    write(archive / "bench/cuda_gpt.py", GPT_PY.format(compiled=compiled))
    write(archive / "bench/cuda_compare.py", COMPARE_PY)
    write(archive / "text.txt", "text")
    write(archive / "info.json", json.dumps(INFO))
    for name in ("tests/golden", "extensions/tensor/tests/golden"):
        (archive / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(CHECK, archive / "check.py")
    write(d / "python/torch.py", TORCH)
    return archive, toolkit


def run(archive, toolkit, *args, torch=True, **fake):
    env = {**os.environ, "CUDA_HOME": str(toolkit), "PATH": f"{toolkit}/bin:{os.environ['PATH']}", "FAKE": json.dumps(fake), "PYTHONPATH": str(archive.parent / "python") if torch else "", "LD_LIBRARY_PATH": ""}
    out = archive.parent / "report"
    shutil.rmtree(out, ignore_errors=True)
    r = subprocess.run([sys.executable, archive / "check.py", "--out", out, *args], capture_output=True, text=True, env=env, timeout=120)
    report = out / "report.md"
    return r, report.read_text() if report.exists() else ""


def counts(r):
    found = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) not run", (r.stdout.strip().splitlines() or [""])[-1])
    return tuple(map(int, found.groups())) if found else None


def runs(d):
    archive, toolkit = unpacked(d)
    r, report = run(archive, toolkit)
    good, bad, not_run = counts(r) or (0, -1, -1)
    check("all holds", r.returncode == 0 and bad == not_run == 0 and good > 40, r.stdout + r.stderr)
    for part in ("| cases | gpt in bf16", "| nccl | two ranks, pp2 | passed", "| speed | as typed beside torch.compile | passed", "memcheck: attention | passed",
                 "| `norm_kernel<1>` | 1 | 28.0 | 28 |", "4 kernels, 2.04 ms", "| as typed | 25.00 | 655,360 | 1.35 | 2.0 GiB |", "measured 25.00 ms", "| copy bf16 | 0.28 |", "built from abc1234"):
        check(f"the report says {part}", part in report, report)
    check("a passed test case has no line of its own", "test_tensor" not in report, report)
    for part, line in (("cases", "golden values"), ("nccl", "two ranks"), ("speed", "as typed")):
        r, report = run(archive, toolkit, "--only", part)
        others = [text for text in ("golden values", "two ranks", "GPT-2 124M as typed") if text in report and line not in text and text not in line]
        check(f"--only {part}", r.returncode == 0 and line in report and not others, report)
    # name, options, how the stand-ins behave, exit code, number of failed checks (None: any), words of the report
    rows = [
        ("a broken case fails, with its output, and takes no other with it", ["--only", "cases"], dict(cases=["fine", "broken, really", "fine too"]), 1, 2, "CHECK( 1 == 2 )", "### cases: test_cuda: broken, really"),
        ("a case that hangs is stopped", ["--only", "cases", "--seconds", "60"], dict(cases=["fine", "hangs"]), 1, 2, "stopped after"),
        ("recorded steps with other losses fail", ["--only", "cases"], dict(differs=1e-7), 1, 2, "losses with graphs"),
        ("ranks with other losses fail", ["--only", "nccl"], dict(differs=0.1), 1, 6),
        ("a loss unlike the CPU's fails", ["--only", "cases"], dict(bf16=0.1), 1, 1, "val_loss 2.1000, on the CPU 2.0000"),
        ("a step slower than promised fails", ["--only", "speed"], dict(ms=32), 1, 1, "1.06 times the speed of torch.compile, expected 1.15"),
        ("without PyTorch its checks are skipped", ["--only", "speed"], dict(torch=False), 0, None, "| skipped |", "no PyTorch that sees the card", "3 skipped"),
        ("without counters a trace gives the step", ["--only", "speed"], dict(no_counters=1), 0, None, "2 kernels, 0.01 ms", "softmax_kernel<1>"),
        ("a machine whose C++ library is too old takes the archive's", ["--only", "speed"], dict(old_compiler=1), 0, None),
    ]
    for name, options, fake, code, fail_count, *words in rows:
        r, report = run(archive, toolkit, *options, **fake)
        check(name, r.returncode == code and (fail_count is None or counts(r)[1] == fail_count) and all(word in report for word in words), report)
    r, report = run(archive, toolkit, "--seconds", "1.5")
    check("without time checks are not run", r.returncode == 1 and counts(r)[1] == 0 and counts(r)[2] > 5 and "no time left" in report, report)
    r, report = run(archive, toolkit, no_device="no NVIDIA driver is installed")
    lines = [line for line in report.splitlines() if "no NVIDIA driver is installed" in line]
    check("without a driver each part says so", r.returncode == 1 and len(lines) == 3 and counts(r)[:2] == (0, 0) and counts(r)[2] > 40, report)
    r, report = run(archive, toolkit, no_device="no NVIDIA driver is installed", cases=[])
    check("programs that do not start fail without a driver, too", counts(r)[1] == 1 and "| cases | its programs start | failed |" in report, report)
    (toolkit / "lib64/libcuOne.so.13").unlink()
    r, report = run(archive, toolkit, cases=[])
    check("a missing library is named, and no program blamed", r.returncode == 1 and report.count("this machine lacks libcuOne.so.13") == 3 and counts(r)[1] == 0, report)


def bundle(d):
    """The packing, with stand-ins for meson, ninja, strip and ldd."""
    tools, libraries = d / "tools", d / "libraries"
    for name in ("meson", "ninja", "strip", "ldd"):
        write(tools / name, STAND_IN, True)
    for name in ("libfmt.so.9", "libstdc++.so.6", "libcudart.so.13", "libcublasLt.so.13", "libc.so.6"):
        write(libraries / name, name)
    digits = d / "digits"
    write(digits / "train", "1")

    def pack(*args, **variables):
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "BUILD": str(d / "build"), "FAKE": json.dumps({"libraries": str(libraries)}), **variables}
        return subprocess.run(["bash", SCRIPT, *map(str, args)], capture_output=True, text=True, env=env)

    usage = pack()
    check("usage", usage.returncode == 2 and "--bundle" in usage.stdout, usage.stdout)
    for args, said in ((["--bundle", "--text", d / "none"], "there is no file"), (["--bundle", "--digits", d / "none"], "there is no folder"), (["--bundle", "--text"], "expected a value"), (["--bundle", "--part", 1], "expected --text, --digits or --out")):
        r = pack(*args)
        check(f"refused: {' '.join(map(str, args))}", r.returncode == 2 and said in r.stderr, r.stderr)
    r = pack("--bundle", "--digits", digits, "--out", d / "a.tar.xz")
    check("a bundle is packed", r.returncode == 0 and (d / "a.tar.xz").exists(), r.stdout + r.stderr)
    subprocess.run([sys.executable, "-c", "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])", d / "a.tar.xz", d / "there"], check=True)
    there = d / "there/gpu-checks"
    info = json.loads((there / "info.json").read_text())
    check("libraries: ours go along, glibc's and CUDA's do not", sorted(str(p.relative_to(there / "lib")) for p in (there / "lib").rglob("*.so*")) == ["compiler/libstdc++.so.6", "libcudart.so.13", "libfmt.so.9"] and info["libraries"] == ["libcublasLt.so.13"], str(info))
    check("what the CPU reached", info["expected"]["gpt"]["val_loss"] == 2 and info["expected"]["cnn"]["test_accuracy"] == 0.97 and info["training"]["cnn"]["data"] == "@/digits", str(info))
    check("golden values, text and digits", all((there / name).exists() for name in ("tests/golden/ops.safetensors", "text.txt", "digits/train", "tokenizer/vocab.json", "check.py", "bench/cuda_gpt.py", "bench/cuda_compare.py")))
    check("programs of all suites", all((there / "bin" / name).exists() for name in info["suites"] + ["gpt", "cnn", "lockstep", "golden", "bench_cuda"]))
    for golden in [ROOT / "tests/golden", *(ROOT / "extensions" / suite[5:] / "tests/golden" for suite in info["suites"])]:
        missing = [str(file) for file in golden.rglob("*") if not (there / file.relative_to(ROOT)).exists()]
        check(f"golden files of {golden.relative_to(ROOT)}", not missing, "\n".join(missing))
    for config in there.rglob("adapter_config.json"):
        base = json.loads(config.read_text())["base_model_name_or_path"]
        check(f"the model of the adapter in {config.parent.name}", (config.parent / base / "config.json").exists(), base)
    models = "extensions/hugging_face/tests/golden/models"
    read = "".join(file.read_text() for file in [*(ROOT / "extensions/lora/tests").glob("*.cpp"), ROOT / "extensions/hugging_face/tests/noted_folders.h"])
    for name in re.findall(r'"(\w+)"', read):
        check(f"the model {name}, which test_lora reads", (there / models / name).exists() or not (ROOT / models / name).is_dir())
    build = (d / "build/build.ninja").read_text()
    for option in re.findall(r"-D([a-z_]+)=", build):
        check(f"meson option {option}", f"option('{option}'" in (ROOT / "meson.options").read_text() or option.startswith("unity"))
    r = pack("--bundle", BUNDLE_MIB="0")
    check("an archive that is too large is an error", r.returncode == 1 and "larger than 0 MiB" in r.stderr and (d / "build/gpu-checks.tar.xz").exists(), r.stdout + r.stderr)


def names():
    """What the scripts name exists: targets, options, test cases, kernels."""
    text, script = CHECK.read_text(), SCRIPT.read_text()
    check("bash reads it", subprocess.run(["bash", "-n", SCRIPT]).returncode == 0)
    for folder, name in sorted(set(re.findall(r"\b(tests|apps|bench)/([a-z_]+)\b(?!\.py)", script))):
        build = (ROOT / folder / "meson.build").read_text()
        check(f"target {folder}/{name}", f"'{name}'" in build or (folder == "apps" and name in ("cnn", "gpt", "lockstep")))
    for suite in re.search(r"suites=\((.*)\)", script)[1].split():
        build = (ROOT / "tests/meson.build").read_text()
        check(f"suite {suite}", f"'{suite}'" in build or f"'{suite[5:]}': {{" in build or (ROOT / "extensions" / suite[5:] / "tests").is_dir())
    known = (ROOT / "docs/options.md").read_text()
    known = known[known.index("## cnn train"):]
    for option in {*re.findall(r'"(--[a-z][a-z-]+)"', text)} - {"--only", "--out", "--version", "--seconds", "--tool", "--error-exitcode", "--print-limit", "--metrics", "--clock-control", "--csv", "--trace", "--sample", "--cpuctxsw",
                                                                     "--force-overwrite", "--report", "--format"}:
        check(f"option {option}", re.search(rf"^  {option}\b", known, re.M) or f'"{option}"' in (ROOT / "bench/cuda_gpt.py").read_text(), option)
    spec = importlib.util.spec_from_file_location("check", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases = [name for file in (ROOT / "tests/cuda").glob("*.cpp") for name in re.findall(r'TEST_CASE\("([^"]*)"', file.read_text())]
    for family, patterns in module.FAMILIES.items():
        for one in patterns.split(","):
            check(f"cases of {family}: {one}", fnmatch.filter([c.lower() for c in cases], one.lower()))
    check("tools' families", all(family in module.FAMILIES for families in module.TOOLS.values() for family in families))
    kernels = "".join(p.read_text() for p in ROOT.glob("*/cuda/*"))
    check("a step ends with the optimizer's kernel", "step_all_kernel" in kernels)
    check("filter of one case", module.pattern("a, b * c") == "-tc=a? b ? c")
    for name, group in (("nvjet_sm90_tst", "products"), ("void lockstep::norm_grad_kernel<1>", "norms"), ("loss_kernel", "loss"), ("void cublasLt::splitKreduce_kernel", "sums of split products"), ("x", "other")):
        check(f"group of {name}", module.group_of(name) == group)
    rows = [("a", 1), ("step_all_kernel", 1), ("b", 2), ("step_all_kernel<1>", 3), ("step_all_kernel<2>", 4), ("c", 5)]
    check("steps are cut at the optimizer", module.steps_of(rows) == [[("b", 2), ("step_all_kernel<1>", 3), ("step_all_kernel<2>", 4)]])
    table = io.StringIO()
    csv.writer(table).writerows([["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"], ["0", "k", "gpu__time_duration.sum", "nsecond", "1,500"], ["1", "k", "other", "%", "3"]])
    check("units of the profiler", module.profiled("==PROF== x\n" + table.getvalue()) == [("k", 1500)])


with tempfile.TemporaryDirectory() as folder:
    for part in (runs, bundle):
        (pathlib.Path(folder) / part.__name__).mkdir()
        part(pathlib.Path(folder) / part.__name__)
names()
finish()
