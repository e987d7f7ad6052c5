#!/usr/bin/env python3
"""Runs every test of a build folder and ends with "N passed, M failed".

    tests/run_all.py build [--suite unit] [--not-suite scripts] [names...]

Counted are doctest's cases, the cases of programs whose last line is "N passed, M failed" (golden, layers, docs), and one
for any other program. Exit code 77 means skipped. A program that crashes, hangs or exits with an error fails at least once.
A test's `priority` in meson.build is about the number of seconds that it takes; `is_parallel: false` gives it all cores.
"""
import argparse
import atexit
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed")
LAST_LINE = re.compile(r"^(\d+) passed, (\d+) failed")
LEFT_OUT = "left out, as the time is over"
NOISE = re.compile(r"^\[doctest\] (doctest version|run with)|^=+$")


def listed(build, options):
    described = json.loads(subprocess.run(["meson", "introspect", "--tests", build], check=True, capture_output=True, text=True).stdout)
    names = set()
    for test in described:
        suites = {s.split(":")[-1] for s in test["suite"]}
        if test["name"] in names:
            sys.exit(f"two tests are named {test['name']}; give one of them another name in its meson.build")
        names.add(test["name"])
        if (options.suite and options.suite not in suites) or (options.not_suite and options.not_suite in suites):
            continue
        if not options.names or test["name"] in options.names:
            yield test


def count(output, code):
    """(passed, failed) of one program."""
    lines = output.strip().split("\n")
    passed, failed = (1, 0) if code == 0 else (0, 1)
    summary = DOCTEST.findall(output)
    last = LAST_LINE.match(lines[-1])
    if summary:
        passed, failed = int(summary[-1][1]), int(summary[-1][2])
    elif last:
        passed, failed = int(last.group(1)), int(last.group(2))
    if code != 0 and failed == 0:
        failed = 1
    return passed, failed


def run(test, options, until):
    """(name, line to print, output, passed, failed) of one test, which ends at its own time limit or at `until`."""
    name, start = test["name"], time.time()
    limit = min(test["timeout"] * options.timeout if test["timeout"] > 0 else float("inf"), until - start)
    if limit <= 0:
        return name, LEFT_OUT, "", 0, 0
    env = dict(os.environ, **(test["env"] if isinstance(test["env"], dict) else {}))
    command = [*test["cmd"], *([f"--source-file-exclude={options.without}"] if options.without else [])]
    try:
        done = subprocess.run(command, cwd=test["workdir"] or options.build, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit if limit < float("inf") else None)
        output, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        if time.time() >= until:
            return name, f"{LEFT_OUT} after {limit:.0f} s", "", 0, 0
        output, code = (late.stdout or b"").decode(errors="replace") + f"\nstopped after {late.timeout:.0f} seconds", -1
    if code == 77:
        return name, f"skipped: {output.strip().splitlines()[-1] if output.strip() else 'no reason given'}", "", 0, 0
    passed, failed = count(output, code)
    return name, f"{passed} passed, {failed} failed, {time.time() - start:.1f} s", f"{output}\nexit code {code}", passed, failed


def results(tests, options, until):
    """The results as tests end. Runs `jobs` tests at a time, long ones first; then tests that measure time, one at a
    time.
    """
    together, serial = ([test for test in tests if test["is_parallel"] == parallel] for parallel in (True, False))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = [pool.submit(run, test, options, until) for test in sorted(together, key=lambda test: -test["priority"])]
        for done in concurrent.futures.as_completed(started):
            yield done.result()
    for test in serial:
        yield run(test, options, until)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--suite")
    parser.add_argument("--not-suite")
    parser.add_argument("--without", metavar="FILES", help="skip the cases of these sources (C++ suites only), such as *schedule_test*")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time and leave out the remaining tests")
    parser.add_argument("--timeout", type=float, default=1, help="multiplies the tests' own limits (sanitizers are slow)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1, help="tests that run at once (default: one more than the cores, because some tests wait)")
    options = parser.parse_intermixed_args()  # names may come after options

    tests = list(listed(options.build, options))
    # OpenMP threads that wait would spin, on cores that another test needs: up to a hundred times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Disks of shared machines can be slow at times. Temporary files of tests are in memory, except in tests of files
    # and disks; in a subfolder, because one test checks that our shared memory leaves nothing in /dev/shm itself.
    os.environ.setdefault("LOCKSTEP_TEST_DISK", tempfile.gettempdir())
    memory = "/dev/shm"
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**31:
        os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-", dir=memory)
        atexit.register(shutil.rmtree, os.environ["TMPDIR"], ignore_errors=True)
    total_passed = total_failed = 0
    until = time.time() + options.seconds
    for name, line, output, passed, failed in results(tests, options, until):
        total_passed, total_failed = total_passed + passed, total_failed + failed
        print(f"  {name:<14} {line}", flush=True)
        if failed:
            printed = "\n".join(line for line in output.splitlines() if not NOISE.match(line))
            print(f"--- {name} ---\n{printed}\n--- end of {name} ---", flush=True)
    if total_passed + total_failed == 0 and time.time() < until:
        print("no tests were found")
        total_failed = 1
    print(f"{total_passed} passed, {total_failed} failed")
    return total_failed > 0


if __name__ == "__main__":
    sys.exit(main())
