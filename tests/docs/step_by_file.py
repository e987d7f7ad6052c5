#!/usr/bin/env python3
"""Holds docs/step-by-file.md to the code: each file in its tables has the function beside it, and no table has more
files than its section says.

Prints what is wrong, then "N passed, M failed"; a case is a row or a section.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    page = (ROOT / "docs" / "step-by-file.md").read_text()
    passed = failed = 0

    def check(is_right, what):
        nonlocal passed, failed
        passed, failed = passed + is_right, failed + (not is_right)
        if not is_right:
            print(f"docs/step-by-file.md: {what}")

    for section in page.split("\n## ")[1:]:
        rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", section, re.M)
        limit = re.search(r"at most (\d+)\s+files", section)
        files = {name for name, _ in rows}
        check(limit is not None and 0 < len(files) <= int(limit[1]), f"{len(files)} files in {section.splitlines()[0]!r}")
        for name, function in rows:
            path = ROOT / name
            check(path.is_file() and function in path.read_text(), f"{name} has no {function}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
