#!/usr/bin/env python3
"""A program that is built with the cache of scripts/compiler_cache.sh compiles after a comment of a header has changed.

The header is part of a precompiled header, which the cache must not take for the old one. Exits with 77 without ccache.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = """
source "$0"/scripts/compiler_cache.sh
export CCACHE_DIR=$PWD/cache
rm -f all.h.gch main.o
ccache ${CXX:-g++} -x c++-header all.h -o all.h.gch && ccache ${CXX:-g++} -Winvalid-pch -include all.h -c main.cpp -o main.o
"""


def main():
    if not shutil.which("ccache") or "clang" in os.environ.get("CXX", ""):
        print("skipped: ccache and g++ are needed")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        d = pathlib.Path(folder)
        (d / "all.h").write_text('#include "part.h"\n')
        for comment in ("a number", "some number"):
            (d / "main.cpp").write_text(f'#include "part.h"\nint main() {{ return Part().number + {len(comment)}; }}\n')
            (d / "part.h").write_text(f"#pragma once\n// {comment}\nstruct Part {{\n  int number = 0;\n}};\n")
            done = subprocess.run(["bash", "-c", BUILD, ROOT], cwd=d, capture_output=True, text=True)
            if done.returncode:
                failed += 1
                print(f'FAIL with the comment "{comment}":\n{done.stdout}{done.stderr}')
    print(f"{2 - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
