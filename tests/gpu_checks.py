#!/usr/bin/env python3
"""scripts/gpu_checks.sh only names targets, options and test cases that exist: it runs on GPU machines, where a failed
run may not be repeatable.

tests/gpu_checks.py        ends with "N passed, N failed"
"""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts/gpu_checks.sh"
text = SCRIPT.read_text()
passed, failed = 0, []


def check(what, good):
    global passed
    passed += bool(good)
    if not good:
        failed.append(what)


def options(line):
    return set(re.findall(r"(?<=[ (])--[a-z0-9][a-z0-9-]*", line))


def run(*args):
    return subprocess.run(["bash", SCRIPT, *args], capture_output=True, text=True)


check("bash reads it", subprocess.run(["bash", "-n", SCRIPT]).returncode == 0)
usage = run()
check("its usage names all calls", usage.returncode == 2 and all(f"--part {i}" in usage.stdout for i in range(1, 5)) and "--pack" in usage.stdout)
check("no fifth part", run("--part", "5").returncode == 2)

# Targets: executables or suites in the folder's meson.build.
for folder, name in sorted(set(re.findall(r"\b(tests|apps|bench)/([a-z_]+)\b(?!\.py)", text))):
    build = (ROOT / folder / "meson.build").read_text() + (ROOT / "apps/meson.build").read_text()
    check(f"target {folder}/{name}", f"'{name}'" in build or (name.startswith("test_") and f"'{name[5:]}': {{" in build))
for option in re.findall(r" -D([a-z]+)=", text):
    check(f"meson option {option}", f"option('{option}'" in (ROOT / "meson.options").read_text() or option.startswith("unity"))
for path in re.findall(r"bench/[a-z_]+\.py", text):
    check(path, (ROOT / path).exists())

# Options: each must be in the help of its program.
known = (ROOT / "docs/options.md").read_text()
trains = known[known.index("## gpt train"):known.index("## gpt eval")]
gpt = [line for line in text.splitlines() if '"$gpt"' in line or "${run[@]}" in line or "${small[@]}" in line or re.match(r"losses_\w+\(\)", line)]
places = {"bench/cuda_gpt.py": ROOT / "bench/cuda_gpt.py", "bench/bench_cuda": ROOT / "bench/cuda.cpp"}
for line in gpt:
    for option in options(line.split(" -- ")[-1] if "lockstep" not in line else line[line.index("${small[@]}"):]):
        check(f"gpt train {option}", re.search(rf"^  {option}\b", trains, re.M))
for name, source in places.items():
    for line in text.splitlines():
        if name in line and "needs" not in line:
            for option in options(line[line.index(name):]):
                check(f"{name} {option}", f'"{option}"' in source.read_text())
check("lines that train were found", len(gpt) > 8)

# Test cases that are selected by a part of their names.
for target, pattern in re.findall(r'tests/(test_\w+)" -tce?="\*(\w+)\*"', text):
    files = (ROOT / "tests" / target[5:]).glob("*.cpp")
    check(f"a test of {target} with {pattern}", any(re.search(rf'TEST_CASE\("[^"]*{pattern}', f.read_text()) for f in files))

# The steps that a part's summary mentions are steps of that part.
steps = subprocess.run(["bash", "-c", "echo " + " ".join(re.findall(r"^for log in (.*); do$", text, re.M)[:1])], capture_output=True, text=True).stdout.split()
named = [re.sub(r"\$\w+", r"\\w+", name) for name in re.findall(r"(?:step|skip) \"?([\w$-]+)", text)]
check("steps that the report shows were found", len(steps) > 15)
for name in steps:
    check(f"a step {name}", any(re.fullmatch(pattern, name) for pattern in named))

for what in failed:
    print("no", what)
print(f"{passed} passed, {len(failed)} failed")
raise SystemExit(bool(failed))
