#!/usr/bin/env python3
"""How a program ends whose main() catches nothing: one line that says why, and an exit code; on one rank and on two.

tests/uncaught.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import pathlib
import subprocess
import sys
import tempfile
import time

from programs import APPS, check, environment, finish

PROGRAM = pathlib.Path(sys.argv[1]).resolve() / "tests/uncaught"
# cause: the exit code, and what the line says
CAUSES = {
    "error": (1, "[matmul] "),
    "usage": (2, "[uncaught] expected a right option, got a wrong one"),
    "dist": (1, "[uncaught] ranks disagree"),
    "std": (1, "[uncaught] of the standard library"),
    "thread": (1, "[uncaught] in a thread"),
    "locked": (1, "[uncaught] under a lock"),
    "noexcept": (1, "[uncaught] in a function that is noexcept"),
}


def run(*words, **variables):
    start = time.monotonic()
    r = subprocess.run(list(map(str, words)), capture_output=True, text=True, errors="replace", timeout=120, env=environment(LOCKSTEP_TIMEOUT="60", **variables))
    check(f"{words}: soon", time.monotonic() - start < 20, time.monotonic() - start)
    return r


def expect(name, r, code, text, lines=1):
    """The text is said once, in a line with "error: ", and nothing speaks of a crash."""
    errors = [line for line in r.stderr.splitlines() if "error: " in line]
    check(name, r.returncode == code and r.stderr.count(text) == 1 and len(errors) == lines and any(text in line for line in errors)
          and not any(word in r.stderr for word in ("terminate called", "SIGABRT", "Aborted")), f"exit {r.returncode}: {r.stdout}{r.stderr}")


with tempfile.TemporaryDirectory() as folder:
    for cause, (code, text) in CAUSES.items():
        r = run(PROGRAM, cause, TMPDIR=folder)
        expect(f"{cause}, alone", r, code, text)
        check(f"{cause}, alone: one line, and the output from before", len(r.stderr.splitlines()) == 1 and r.stderr.startswith("error: ") and r.stdout == "begun", r.stdout + r.stderr)
        r = run(APPS / "lockstep", "run", "-q", "-n", 2, "--", PROGRAM, cause, TMPDIR=folder)
        expect(f"{cause}, two ranks of the launcher", r, code, text)
        check(f"{cause}, two ranks of the launcher: names the rank", "rank 1 ended with exit code" in r.stderr or cause == "usage", r.stderr)
        for kind in ("threads", "processes"):
            if cause == "thread" or cause == "noexcept":
                continue  # they end the process, not the rank: see below
            r = run(PROGRAM, cause, kind, TMPDIR=folder)
            expect(f"{cause}, two {kind}", r, 1, text)
            check(f"{cause}, two {kind}: one line", len(r.stderr.splitlines()) == 1, r.stderr)
    # The program of ranks that are threads ends as a whole. A process that ends says why, and so does the one that waits.
    for cause in ("thread", "noexcept"):
        expect(f"{cause}, two threads", run(PROGRAM, cause, "threads", TMPDIR=folder), *CAUSES[cause])
        r = run(PROGRAM, cause, "processes", TMPDIR=folder)
        check(f"{cause}, two processes", r.returncode == 1 and CAUSES[cause][1] in r.stderr and "terminate called" not in r.stderr, r.stderr)

    r = run(PROGRAM, "none", RANK="5", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    expect("a job that cannot begin", r, 1, "error: ")
    # What is not a std::exception has no text; the C++ library names its type.
    r = run(PROGRAM, "number", TMPDIR=folder)
    check("a number is thrown", r.returncode == -6 and "terminate called after throwing an instance of 'int'" in r.stderr, f"exit {r.returncode}: {r.stderr}")
    # The error file cannot be written: stderr is left.
    expect("no folder for the error file", run(PROGRAM, "error", LOCKSTEP_ERROR_FILE=f"{folder}/none/error.json"), *CAUSES["error"])
    r = run(PROGRAM, "error", LOCKSTEP_ERROR_FILE=f"{folder}/error.json")
    check("the error file", r.returncode == 1 and not r.stderr and pathlib.Path(folder, "error.json").read_text().startswith("[matmul] "), r.stderr)
    r = run(APPS / "lockstep", "run", "-q", "-n", 2, "--", PROGRAM, "none", TMPDIR=folder)
    check("no cause", r.returncode == 0 and r.stdout.count("begun, ended") == 2 and not r.stderr, f"exit {r.returncode}: {r.stdout}{r.stderr}")
finish()
