#!/usr/bin/env python3
"""Installs the build's library into a fresh prefix, and builds and tests examples/extension/ against it.

Usage: extension.py BUILD. The last line is "N passed, N failed".
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "extension"
MOST_LINES = 150  # of its sources


def run(command, **options):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def main(build):
    def is_short():
        sources = [path for path in EXAMPLE.iterdir() if path.suffix in (".h", ".cpp", ".cu") and path.name != "test.cpp"]
        lines = sum(len(path.read_text().splitlines()) for path in sources)
        print(f"{lines} lines of sources (at most {MOST_LINES})")
        if lines > MOST_LINES:
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

    passed = failed = 0
    for check in (is_short, works):
        try:
            check()
            passed += 1
        except RuntimeError as error:
            failed += 1
            print(f"{check.__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
