#!/usr/bin/env python3
"""Runs a suite of tests in a program whose C and C++ locales are another: numbers must be read and written as before.

    tests/locales.py LOCALE TEST_PROGRAM FILES

FILES names the tests' sources that read and write numbers, as doctest's --source-file; with LONG=1 the whole suite runs. Takes the
system's locale, or makes it (localedef). Exit code 77 (skipped) with a reason where neither can be.
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
            if maker:  # its exit code also counts warnings
                subprocess.run([maker, "-i", language, "-f", coding, f"{folder}/{name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if not os.path.exists(f"{folder}/{name}/LC_NUMERIC"):
                print(f"skipped: {name} is not here and cannot be made; the package locales has what that needs")
                return 77
            env["LOCPATH"] = folder
        return subprocess.run(command, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
