"""Counts checks, and prints those that fail: for the tests of whole programs."""
import sys

passed = failed = 0


def check(name, condition, shown=""):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    if not condition:
        print(f"FAIL {name}\n{shown}", flush=True)


def finish():
    """The last line that tests/run_all.py counts, and the exit code."""
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
