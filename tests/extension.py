#!/usr/bin/env python3
"""Installs the build's library into a fresh prefix, and builds and tests examples/extension/ against it.

Usage: extension.py BUILD. The last line is "N passed, N failed".
"""
import json
import os
import pathlib
import sys
import tempfile

from programs import attempt, finish, output_of as run

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "extension"
MAX_LINES = 150  # of its sources


def main(build):
    def is_short():
        sources = [path for path in EXAMPLE.iterdir() if path.suffix in (".h", ".cpp", ".cu") and path.name != "test.cpp"]
        lines = sum(len(path.read_text().splitlines()) for path in sources)
        print(f"{lines} lines of sources (at most {MAX_LINES})")
        if lines > MAX_LINES:
            raise RuntimeError("the example is too long")

    def works():
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--tags", "devel", "--destdir", work / "root"])
            env = dict(os.environ, PKG_CONFIG_PATH=str(next((work / "root").rglob("lockstep.pc")).parent))
            run(["meson", "setup", "-Doptimization=0", "-Ddebug=false", work / "build", EXAMPLE], env=env)
            run(["ninja", "-C", work / "build"])
            said = run([work / "build" / "test_signs"])
            print(said, end="")
            options = {o["name"]: o["value"] for o in json.loads(run(["meson", "introspect", "--buildoptions", build]))}
            if options["cuda"] == "simulated" and "cuda:0" not in said:
                raise RuntimeError("expected a test on a simulated device")

    attempt(is_short)
    attempt(works)
    finish()


if __name__ == "__main__":
    main(sys.argv[1])
