"""Modules that a test of interoperation needs: without them it is skipped (exit code 77), or $PYTHON runs it, which may have them."""
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
