"""Shared by tests of interoperability. need() skips a test (exit code 77) if its modules are missing, or runs it with
$PYTHON, which may have them.
"""
import importlib.util
import os
import subprocess
import sys


def need(*modules):
    if all(importlib.util.find_spec(name) for name in modules):
        return
    other = os.environ.get("PYTHON")
    if other and not os.environ.get("LOCKSTEP_INTEROP_CHILD"):
        sys.exit(subprocess.run([other, *sys.argv], env=dict(os.environ, LOCKSTEP_INTEROP_CHILD="1")).returncode)
    print(f"{', '.join(modules[:-1])}{' or ' if len(modules) > 1 else ''}{modules[-1]} is missing (set PYTHON to an interpreter that has them)")
    sys.exit(77)


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")


def count(checks):
    """Runs the checks, which return their largest difference or raise; exit code 1 if one raised."""
    passed = failed = 0
    for name, check in checks.items():
        try:
            print(f"{name}: largest difference {check():.1e}")
            passed += 1
        except RuntimeError as error:
            print(f"{name}: {error}")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0
