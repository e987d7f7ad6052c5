#!/usr/bin/env python3
"""Writes the manual page of a program from its --help and that of its commands.

scripts/man_page.py PROGRAM PAGE
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import options_page


def escaped(line):
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + line if line.startswith((".", "'")) else line


def manual(program):
    """The help of each command, preformatted, under a heading of its own."""
    name = program.name
    parts = [f'.TH {name.upper()} 1 "" Lockstep']
    for title, text in options_page.sections([program], name):
        lines = [escaped(line.rstrip()) for line in text.strip("\n").split("\n")]
        if title == name:
            parts += [".SH NAME", f"{name} \\- {lines[0]}"]
        parts += [f'.SH "{title.upper()}"', ".nf", *lines, ".fi"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    pathlib.Path(sys.argv[2]).write_text(manual(pathlib.Path(sys.argv[1])))
