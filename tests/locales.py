#!/usr/bin/env python3
"""Runs a test suite in a process with another C and C++ locale: numbers must be read and written as before.

    tests/locales.py LOCALE TEST_PROGRAM FILES

FILES names the test sources that read and write numbers, as doctest's --source-file does; LONG=1 runs the whole suite. Uses the
system's locale, or generates it (localedef). Exit code 77 (skipped) with a reason if neither is possible.
"""
import locale
import os
import shutil
import subprocess
import sys
import tempfile


def has(name):
    try:
        locale.setlocale(locale.LC_ALL, name)
    except locale.Error:
        return False
    return True


def main():
    name, program, files = sys.argv[1:]
    command = [program] if os.environ.get("LONG") == "1" else [program, "--source-file=" + files]
    env = dict(os.environ, LOCKSTEP_TEST_LOCALE=name)
    with tempfile.TemporaryDirectory() as folder:
        if not has(name):
            language, coding = name.split(".")
            maker = shutil.which("localedef", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/sbin")
            if maker:  # localedef's exit code also reflects warnings
                subprocess.run([maker, "-i", language, "-f", coding, f"{folder}/{name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if not os.path.exists(f"{folder}/{name}/LC_NUMERIC"):
                print(f"skipped: {name} is not here and cannot be made; the package locales has what that needs")
                return 77
            env["LOCPATH"] = folder
        return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
