#!/usr/bin/env python3
"""Writes docs/options.md, the options of every program and command, from their --help.

scripts/options_page.py BUILD            writes the page
scripts/options_page.py BUILD --check    fails if the page has other options, or if a table of another page has an option
                                         that no program has; ends with "N passed, M failed"
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/options.md"
PROGRAMS = ("lockstep", "mlp", "cnn", "gpt")
OPENING = """# Options

All options of every program and command, as `--help` prints them. Most options of a training program
come from the folder `train/`, so your own program has them too: [a training program](train.md). The
page is written by `scripts/options_page.py build`.
"""


def help_of(command):
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} --help ended with {done.returncode}: {done.stderr}")
    return done.stdout


def sections(command, title):
    """The help of a command, followed by that of its subcommands."""
    text = help_of(command)
    yield title, text
    below = re.search(r"^Subcommands:\n((?:  .*\n?)*)", text, re.M | re.I)
    for name in re.findall(r"^  ([a-z][\w-]*)", below[1] if below else "", re.M):
        yield from sections([*command, name], f"{title} {name}")


def page(build):
    parts = [OPENING]
    for program in PROGRAMS:
        for title, text in sections([build / "apps" / program], program):
            lines = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.split("\n"))).strip("\n")
            parts.append(f"## {title}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def unknown_options(text):
    """Options in the first column of a page's tables that no program has, except those marked as refused."""
    known = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))
    for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/**/*.md")]):
        for row, rest in re.findall(r"^\| (`-[^|]*)\|(.*)", path.read_text(), re.M):
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", row):
                if option not in known and "refused" not in rest:
                    yield f"{path.relative_to(ROOT)}: a table names {option}, which no program has"


def names(text):
    """The options of each section. Their layout in --help differs between versions of CLI11."""
    return {title: set(re.findall(r"(?<![\w-])--[a-z][\w-]*", body)) for title, body in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.M | re.S)}


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    text = page(build)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    wrong = list(unknown_options(text))
    is_current = PAGE.exists() and names(PAGE.read_text()) == names(text)
    if not is_current:
        print(f"docs/options.md is not what the programs say: scripts/options_page.py {sys.argv[1]}")
    for problem in wrong:
        print(problem)
    failed = (not is_current) + bool(wrong)
    print(f"{2 - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
