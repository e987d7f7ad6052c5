#!/usr/bin/env python3
"""Installs the build into a fresh prefix, and builds and runs examples/standalone/ against that copy: with one g++ line
that asks pkg-config, and with its own meson project. Nothing of the repository is on the include path then.

Usage: standalone.py BUILD
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "standalone"


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def check_trained(output):
    loss = re.search(r"loss ([0-9.e+-]+)\s*$", output.strip())
    if not loss or not float(loss.group(1)) < 1e-2:
        raise RuntimeError(f"expected the example to end with a loss below 0.01, got:\n{output}")


def main(build):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        configured = {o["name"]: o["value"] for o in json.loads(run(["meson", "introspect", "--buildoptions", build]))}
        prefix = work / "root" / configured["prefix"].lstrip("/")
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(work / "root")])
        pc_file = next(prefix.rglob("lockstep.pc"))
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc_file.parent))
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "lockstep"], env=env))

        def headers_alone():
            """Every installed header compiles by itself, with no flag but -I."""
            include = prefix / "include" / "lockstep"
            text = "".join(f'#include "{h.relative_to(include)}"\n' for h in sorted(include.rglob("*.h")))
            (work / "all.cpp").write_text(text)
            run(compiler + ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-I", str(include), str(work / "all.cpp")])

        def one_line():
            run(compiler + ["-std=c++20", "-O1", str(EXAMPLE / "main.cpp"), "-o", str(work / "example")] + flags)
            check_trained(run([str(work / "example")]))

        def meson_project():
            run(["meson", "setup", str(work / "build"), str(EXAMPLE)], env=env)
            run(["ninja", "-C", str(work / "build")], env=env)
            check_trained(run([str(work / "build" / "example")]))

        def programs_run():
            run([str(prefix / "bin" / "lockstep"), "env", "--json"])
            for name in ("mlp", "cnn", "gpt"):
                run([str(prefix / "bin" / name), "--help"])

        passed = failed = 0
        for check in (headers_alone, one_line, meson_project, programs_run):
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
