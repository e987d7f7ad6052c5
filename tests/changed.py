#!/usr/bin/env python3
"""Builds and runs the suites affected by the differences from branch main, nearest first, for about the given time, and lists what it
left out. Ends with "N passed, M failed".

    tests/changed.py BUILD [--seconds 12]

A suite is affected by a file if ninja would rebuild its program for it. The nearest suite has the folder's name: tests/nn for nn/. The
others start with the shortest, by their priorities in meson.build.
"""
import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys

import run_all

ROOT = pathlib.Path(__file__).resolve().parent.parent


def said(*command):
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def differing():
    """Files that differ from main, including untracked ones."""
    main = "main" if subprocess.run(["git", "rev-parse", "-q", "--verify", "main"], cwd=ROOT, capture_output=True).returncode == 0 else "HEAD"
    return sorted({*said("git", "diff", "--name-only", main).split("\n"), *said("git", "ls-files", "--others", "--exclude-standard").split("\n")} - {""})


def edges(build):
    """{input: outputs} of everything that ninja knows: its build rules, and the headers that compilers reported."""
    found = collections.defaultdict(set)
    for line in (build / "build.ninja").read_text().replace("$\n", "").splitlines():
        if match := re.match(r"build (.*?): \S+ ?(.*)", line):
            outputs, inputs = match[1].replace("| ", "").split(), match[2].split(" || ")[0].replace("| ", "").split()
            for name in inputs:
                found[name].update(outputs)
    target = None
    for line in said("ninja", "-C", build, "-t", "deps").splitlines():
        if match := re.match(r"(\S+): #deps", line):
            target = match[1]
        elif line.startswith("    "):
            found[line.strip()].add(target)
    return found


def reached(build, files):
    """Everything that is built from these source files, by its path in the build folder."""
    graph = edges(build)
    up = os.path.relpath(ROOT, build)
    waiting = [name for file in files for name in (f"{up}/{file}", str(ROOT / file), f"{build}/{up}/{file}")]
    visited = set(waiting)
    while waiting:
        for output in graph.get(waiting.pop(), ()):
            if output not in visited:
                visited.add(output)
                waiting.append(output)
    return visited


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=12, help="total time of the tests, by their priorities, without building (default: 12)")
    options = parser.parse_args()
    build = options.build.resolve()

    files = differing()
    if not files:
        print("Nothing differs from main.\n0 passed, 0 failed")
        return 0
    made = reached(build, files)
    near = {part for file in files for part in file.split("/")[:-1]}
    tests, programs = list(run_all.listed(build, argparse.Namespace(suite=None, not_suite=None, names=None))), {}
    for test in tests:
        names = {os.path.relpath(word, build) for word in test["cmd"] if os.path.isabs(word)} & made
        scripts = {os.path.relpath(word, ROOT) for word in test["cmd"] if os.path.isabs(word)} & set(files)
        if names or scripts:
            programs[test["name"]] = (test, names)
    order = sorted(programs.values(), key=lambda found: (found[0]["name"] not in near, found[0]["priority"]))
    chosen, spent = [], 0
    for test, names in order:
        spent += max(1, test["priority"]) / len(os.sched_getaffinity(0))
        if spent <= options.seconds or not chosen:
            chosen.append((test["name"], names))
    left_out = [test["name"] for test, _ in order if test["name"] not in {name for name, _ in chosen}]
    left_out += ["scripts that start programs"] if any(name.startswith("apps/") for name in made) else []
    print(f"{len(files)} files differ from main. Suites that see them: {', '.join(name for name, _ in chosen) or 'none'}.", flush=True)
    if left_out:
        print(f"Left out: {', '.join(left_out)}. scripts/test.sh runs all.", flush=True)
    if not chosen:
        print("0 passed, 0 failed")
    code = 0
    if chosen:
        targets = sorted({name for _, names in chosen for name in names})
        if targets and subprocess.run([ROOT / "scripts/build.sh", *targets]).returncode:
            return 1
        code = subprocess.run([sys.executable, ROOT / "tests/run_all.py", build, *(name for name, _ in chosen)]).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
