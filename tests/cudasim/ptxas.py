#!/usr/bin/env python3
"""Compares what ptxas says of every kernel (registers, spilled bytes, shared memory) with tests/cudasim/ptxas.golden.

    tests/cudasim/ptxas.py BUILD_FOLDER [--update]          ends with "N passed, N failed"

Reads what tensor/cuda/nvcc.sh has kept beside the objects of a build with -Dcuda=enabled, for one architecture. A kernel
fails that spills, or takes a fifth more registers than it did, unless the golden file says so; so does one that is not in
the file, a line of the file without a kernel, and a kernel whose wgmma ptxas runs one after the other, as it does where
something touches their registers between start and wait. --update writes the file anew, for a person to look at the
difference.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).with_name("ptxas.golden")
ARCH = "sm_90a"
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIAL = re.compile(r"Potential Performance Loss: (.*) in the function '(\w+)'")
HEADER = "# kernel | registers | bytes spilled | bytes of static shared memory; ptxas, " + ARCH


def demangled(names):
    # Debian's binutils has c++filt; the toolkit brings cu++filt.
    tool = shutil.which("cu++filt") or shutil.which("c++filt") or "/usr/local/cuda/bin/cu++filt"
    text = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for name in text.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|lockstep::|on_cuda::", "", name)
        short.append(re.sub(r"^void |\(.*\)$", "", name))
    return short


def measured(build):
    """{kernel: (registers, spilled, shared)}, and the largest where overloads have one name; {kernel: ptxas's complaint}."""
    found, entry, spilled, serial = [], None, 0, {}
    for path in sorted(pathlib.Path(build).rglob("*.cu.o.ptxas")):
        for line in path.read_text(errors="replace").splitlines():
            if match := SERIAL.search(line):
                serial[match.group(2)] = match.group(1)
            elif match := ENTRY.search(line):
                entry, spilled = (match.group(1) if match.group(2) == ARCH else None), 0
            elif match := SPILLS.search(line):
                spilled = int(match.group(1)) + int(match.group(2))
            elif entry and (match := USED.search(line)):
                shared = SHARED.search(line)
                found.append((entry, (int(match.group(1)), spilled, int(shared.group(1)) if shared else 0)))
                entry = None
    kernels = {}
    for name, (_, figures) in zip(demangled([name for name, _ in found]), found):
        kernels[name] = tuple(max(pair) for pair in zip(figures, kernels.get(name, figures)))
    return kernels, dict(zip(demangled(list(serial)), serial.values()))


def golden():
    kernels = {}
    for line in GOLDEN.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *figures = [part.strip() for part in line.rsplit("|", 3)]
            kernels[name] = tuple(map(int, figures))
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    now, serial = measured(options.build)
    if not now:
        print(f"no *.cu.o.ptxas for {ARCH} in {options.build}: expected a build with -Dcuda=enabled")
        print("0 passed, 1 failed")
        return 1
    if options.update:
        GOLDEN.write_text("\n".join([HEADER] + [f"{name} | {r} | {s} | {m}" for name, (r, s, m) in sorted(now.items())]) + "\n")
        print(f"wrote {len(now)} kernels to {GOLDEN}; {sum(s > 0 for _, s, _ in now.values())} of them spill")
        return 0
    before, failed = golden(), 0
    for name in sorted(now.keys() | before.keys()):
        complaint = ""
        if name not in now:
            complaint = "is in the golden file, but not in the build"
        elif name not in before:
            complaint = f"is not in the golden file: {now[name][0]} registers, {now[name][1]} bytes spilled"
        elif name in serial:
            complaint = serial[name]
        elif now[name][1] > before[name][1]:
            complaint = f"spills {now[name][1]} bytes, {before[name][1]} before"
        elif now[name][0] > before[name][0] * 1.2:
            complaint = f"takes {now[name][0]} registers, {before[name][0]} before"
        if complaint:
            failed += 1
            print(f"FAIL {name}: {complaint}")
    if failed:
        print("If this is intended: tests/cudasim/ptxas.py BUILD_FOLDER --update")
    print(f"{len(now.keys() | before.keys()) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
