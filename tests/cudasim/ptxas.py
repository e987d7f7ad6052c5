#!/usr/bin/env python3
"""Compares what nvcc made of every kernel with tests/cudasim/ptxas.golden.

    tests/cudasim/ptxas.py BUILD_FOLDER [--update]          ends with "N passed, N failed"

Reads a build with -Dcuda=enabled -Dptx_text=true, for one architecture: what ptxas said, which tensor/cuda/nvcc.sh keeps beside the
objects, and the PTX in the objects. A kernel fails, unless the golden file says so, that

- spills, or takes a fifth more registers than it did;
- has a narrower widest access to global memory, or fits on a multiprocessor fewer times;
- is not in the file;
- has wgmma that ptxas runs one after the other, as it does where something touches their registers between start and wait.

So does a line of the file without a kernel. --update writes the file anew, for a person to look at the difference.
"""
import argparse
import math
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

GOLDEN = pathlib.Path(__file__).with_name("ptxas.golden")
ARCH = "sm_90a"
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIAL = re.compile(r"Potential Performance Loss: (.*) in the function '(\w+)'")
# In PTX: a module, a kernel with its directives and its body, and in the body loads, stores and copies.
MODULE = re.compile(rb"\.version [^\0]*")
KERNEL = re.compile(r"\.entry (\w+)\((.*?)^\{(.*?)^\}", re.M | re.S)
THREADS = re.compile(r"\.maxntid (\d+)(?:, (\d+))?(?:, (\d+))?")
ACCESS = re.compile(r"\b(?:ld|st)((?:\.[\w:]+)+)\s")
COPY = re.compile(r"\bcp\.async\.c[ag]\.[\w.:]*\s+\[[^]]*\], \[[^]]*\], (\d+)")
BULK_COPY = re.compile(r"\bcp\.async\.bulk\.[\w.:]*global")
BULK = 1 << 30  # stands for the bytes of a bulk copy
EXPECTED = "expected a build with -Dcuda=enabled -Dptx_text=true\n0 passed, 1 failed"
HEADER = f"""\
# kernel | registers | bytes spilled | bytes of static shared memory | widest | narrowest access | blocks     ({ARCH})
# Accesses: bytes of a load or store that names global memory, or of cp.async; "bulk": cp.async.bulk. Atomics and generic
# addresses do not count. Blocks: of the most threads that the kernel allows, on one multiprocessor, without the dynamic
# shared memory, which only a launch knows. "-": none, or the kernel allows any number of threads."""


class Kernel(NamedTuple):
    registers: int
    spilled: int
    shared: int
    widest: int = 0
    narrowest: int = 0
    blocks: int = 0

    def __str__(self):
        accesses = ["bulk" if width == BULK else width or "-" for width in (self.widest, self.narrowest)]
        return " | ".join(map(str, (*self[:3], *accesses, self.blocks or "-")))


def kernel_of(text):
    """The reverse of str()."""
    return Kernel(*(BULK if part == "bulk" else 0 if part == "-" else int(part) for part in text))


def worse(a, b):
    """The worse of each figure, for overloads that have one name."""
    return Kernel(*map(max, a[:3], b[:3]), *map(min, a[3:], b[3:]))


def demangled(names):
    # Debian's binutils has c++filt; the toolkit brings cu++filt.
    tool = shutil.which("cu++filt") or shutil.which("c++filt") or "/usr/local/cuda/bin/cu++filt"
    text = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for name in text.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|lockstep::|on_cuda::", "", name)
        short.append(re.sub(r"^void |\(.*\)$", "", name))
    return short


def widths(body):
    """Bytes of each access to global memory."""
    for match in ACCESS.finditer(body):
        parts = match[1].split(".")[1:]
        if "global" in parts:
            vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
            yield vector * int(re.sub(r"\D", "", parts[-1])) // 8
    yield from (int(match[1]) for match in COPY.finditer(body))
    yield from (BULK for _ in BULK_COPY.finditer(body))


def blocks_of(registers, shared, threads):
    """How many blocks a multiprocessor holds: 64 warps, 32 blocks, 65,536 registers in four parts, of which a warp takes
    multiples of 256, and 228 KiB of shared memory, of which each block takes 1 KiB more than it asks for."""
    if not threads:
        return 0
    warps, of_warp, of_block = -(-threads // 32), -(-registers * 32 // 256) * 256, -(-shared // 128) * 128 + 1024
    return min(64 // warps, 32, 4 * (65536 // 4 // of_warp) // warps, 228 * 1024 // of_block)


def compiled(build):
    """{mangled kernel: (widest, narrowest access, most threads)} from the PTX in the objects."""
    found = {}
    for path in sorted(pathlib.Path(build).rglob("*.cu.o")):
        for module in MODULE.finditer(path.read_bytes()):
            text = module[0].decode(errors="replace")
            if not re.search(rf"^\.target {ARCH}\b", text, re.M):
                continue
            for name, directives, body in KERNEL.findall(text):
                accesses, bounds = list(widths(body)), THREADS.search(directives)
                threads = math.prod(int(size or 1) for size in bounds.groups()) if bounds else 0
                found[name] = (max(accesses, default=0), min(accesses, default=0), threads)
    return found


def measured(build):
    """{kernel: Kernel}; {kernel: ptxas's complaint}."""
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
                found.append((entry, int(match.group(1)), spilled, int(shared.group(1)) if shared else 0))
                entry = None
    kernels, ptx = {}, compiled(build)
    for name, (entry, registers, spilled, shared) in zip(demangled([entry for entry, *_ in found]), found):
        if entry not in ptx:
            sys.exit(f"{build} has no PTX of {name} for {ARCH}: {EXPECTED}")
        *accesses, threads = ptx[entry]
        figures = Kernel(registers, spilled, shared, *accesses, blocks_of(registers, shared, threads))
        kernels[name] = worse(figures, kernels.get(name, figures))
    return kernels, dict(zip(demangled(list(serial)), serial.values()))


def golden():
    kernels = {}
    for line in GOLDEN.read_text().splitlines():
        if line and not line.startswith("#"):
            name, *figures = [part.strip() for part in line.rsplit("|", len(Kernel._fields))]
            kernels[name] = kernel_of(figures)
    return kernels


def complaint_of(name, now, before, serial):
    """Why the kernel fails; "" if it does not."""
    if name not in now:
        return "is in the golden file, but not in the build"
    if name not in before:
        return f"is not in the golden file: {now[name][0]} registers, {now[name][1]} bytes spilled"
    new, old = now[name], before[name]
    if name in serial:
        return serial[name]
    if new.spilled > old.spilled:
        return f"spills {new.spilled} bytes, {old.spilled} before"
    if new.registers > old.registers * 1.2:
        return f"takes {new.registers} registers, {old.registers} before"
    if new.widest < old.widest or new.blocks < old.blocks:
        return f"has a narrower access, or fewer blocks fit:\n  {HEADER.splitlines()[0][2:]}\n  now    {new}\n  before {old}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    now, serial = measured(options.build)
    if not now:
        sys.exit(f"{options.build} has no *.cu.o.ptxas for {ARCH}: {EXPECTED}")
    if options.update:
        GOLDEN.write_text("\n".join([HEADER] + [f"{name} | {kernel}" for name, kernel in sorted(now.items())]) + "\n")
        print(f"wrote {len(now)} kernels to {GOLDEN}; {sum(kernel.spilled > 0 for kernel in now.values())} of them spill")
        return 0
    before = golden()
    complaints = {name: complaint_of(name, now, before, serial) for name in sorted(now.keys() | before.keys())}
    failed = [name for name, complaint in complaints.items() if complaint]
    for name in failed:
        print(f"FAIL {name}: {complaints[name]}")
    if failed:
        print("If this is intended: tests/cudasim/ptxas.py BUILD_FOLDER --update")
    print(f"{len(complaints) - len(failed)} passed, {len(failed)} failed")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
