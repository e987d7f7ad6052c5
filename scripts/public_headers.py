#!/usr/bin/env python3
"""The public headers: lockstep.h and everything that it includes, directly or indirectly, and headers that users
include separately.

Prints them if there is no argument. As meson's install script (MESON_INSTALL_DESTDIR_PREFIX is set) it copies them to
PREFIX/<first argument>, with their folders.
"""
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


# These include a third-party header, which lockstep.h must not.
ON_PURPOSE = ["tensor/eigen.h"]


def public_headers():
    """The paths below the root, sorted."""
    found, todo = set(), ["lockstep.h", *ON_PURPOSE]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += re.findall(r'^#include "([^"]+)"', (ROOT / name).read_text(), re.M)
    return sorted(found)


if __name__ == "__main__":
    prefix = os.environ.get("MESON_INSTALL_DESTDIR_PREFIX")
    for header in public_headers():
        if not prefix:
            print(header)
            continue
        target = pathlib.Path(prefix) / sys.argv[1] / header
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / header, target)
