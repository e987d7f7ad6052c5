#!/usr/bin/env python3
"""The public headers: lockstep.h, the groups in lockstep/, the header of each extension, all that these include, directly
or indirectly, and headers that users include separately.

Prints them if there is no argument. As meson's install script (MESON_INSTALL_DESTDIR_PREFIX is set) it copies them to
PREFIX/<first argument>, with their folders. The second argument is the option `cuda`; the others are the extensions
that were built.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


# These include a third-party header, which lockstep.h must not.
ON_PURPOSE = ["extensions/linear_algebra/eigen.h"]
# Installed with simulated devices: what compiles a .cu file for them, and what tests ask of them.
SIMULATED = ["tests/cudasim/fake.h", "tests/cudasim/simt_cpu.h"]


def extensions():
    """The names of all extensions."""
    return sorted(path.name for path in (ROOT / "extensions").iterdir() if (path / "meson.build").exists())


def behind(*roots, cuda=True):
    """The roots and what they include, as paths below the root of the repository, sorted. cuda False: without what only
    builds for CUDA include."""
    found, todo = set(), [*roots]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        text = (ROOT / name).read_text()
        if not cuda:
            text = re.sub(r"^#ifdef (LOCKSTEP_WITH_CUDA|__CUDACC__)$.*?^#endif$", "", text, flags=re.M | re.S)
        todo += re.findall(r'^#include "([^"]+)"', text, re.M)
    return sorted(found)


def public_headers(names=None, cuda=True):
    """The public headers with those of the extensions `names`; None: of all extensions."""
    groups = [f"lockstep/{path.name}" for path in (ROOT / "lockstep").glob("*.h")]
    names = extensions() if names is None else names
    return behind("lockstep.h", *groups, *(h for h in ON_PURPOSE if h.split("/")[1] in names), *(f"extensions/{name}/{name}.h" for name in names), cuda=cuda)


if __name__ == "__main__":
    prefix = os.environ.get("MESON_INSTALL_DESTDIR_PREFIX")
    if not prefix:
        print("\n".join(public_headers()))
        sys.exit()
    simulated = behind(*SIMULATED) if sys.argv[2] == "simulated" else []
    for header in public_headers(sys.argv[3:], sys.argv[2] != "disabled") + simulated:
        # <lockstep/kernels.h> and "tensor/tensor.h" are both found below PREFIX/include/lockstep
        target = pathlib.Path(prefix) / sys.argv[1] / re.sub("^(lockstep|tests)/", "", header)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub('^#include "(lockstep|tests)/', '#include "', (ROOT / header).read_text(), flags=re.M))
