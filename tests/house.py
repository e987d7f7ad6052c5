#!/usr/bin/env python3
"""The core and its extensions: which files are which, and counts that may only fall.

The core is what Lockstep exists for; everything else stands on it, in extensions/NAME/. A count above its limit fails;
so does one that fell well below it, until the limit follows. --lower writes the limits down. Only the lines of all
source and of tests may get a higher limit, together with a new feature in extensions/ and its tests. The last line is
"N passed, N failed".
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "tests"))
from layers import USES  # noqa: E402
from public_headers import behind  # noqa: E402

# The most that each count may be, and where it shall come.
LIMITS = {
    "lines of the core": (74899, 75000),
    "lines of source, bench/ and examples/": (131000, 114000),
    "lines of tests": (68900, 60000),
    "includes of an extension's header in the core": (0, 0),
    "types of extensions that the core names": (0, 0),
    "pairs of extensions that include each other's headers": (0, 0),
    "headers behind lockstep.h": (67, 70),
    "members of the largest struct": (34, 40),
}

GROW = ("lines of source, bench/ and examples/", "lines of tests")  # with features in extensions/

SOURCES = (".h", ".cpp", ".cu", ".def", ".inc")


def extension_of(name):
    """The extension that a path belongs to; None: the core."""
    return name.split("/")[1] if name.startswith("extensions/") else None


DECLARED = re.compile(r"^ *(?:struct|class|enum class) (\w+)\b(?! *;)", re.M)


def code_of(path):
    """A source without its comments and strings."""
    return re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", path.read_text(errors="replace"))


def named(core, headers):
    """Types that extensions' headers declare and the core names. Names of one word, such as Total, may mean others."""
    theirs = {name for path in headers for name in DECLARED.findall(code_of(path)) if re.search("[a-z0-9][A-Z]", name)}
    codes = {path: code_of(path) for path in core}
    theirs -= {name for code in codes.values() for name in DECLARED.findall(code)}
    return [(path, name) for path, code in codes.items() for name in sorted(set(re.findall(r"\w+", code)) & theirs)]


def files(*folders):
    for folder in folders:
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCES and p.is_file())


def is_test(path):
    return "tests" in path.relative_to(ROOT).parts


def lines_of(paths):
    return sum(len(p.read_text(errors="replace").splitlines()) for p in paths)


def largest_struct(paths):
    """The most data members of a struct in a header."""
    max_members = 0
    for path in paths:
        for body in re.findall(r"^struct [^;{]*\{\n(.*?)^\};", path.read_text(errors="replace"), re.M | re.S):
            members = [line for line in body.split("\n") if re.match(r"  [\w:][^()]*;", line.split("//")[0].rstrip())]
            max_members = max(max_members, sum(1 + line.split("//")[0].split("<")[0].count(",") for line in members))
    return max_members


def counts():
    source = [ROOT / "lockstep.h", *(p for p in files(*sorted({folder.split("/")[0] for folder in USES})) if not is_test(p))]
    owner = {str(p.relative_to(ROOT)): extension_of(str(p.relative_to(ROOT))) for p in source}
    included = [(name, header) for name in owner for header in re.findall(r'^#\s*include "([^"]+)"', (ROOT / name).read_text(errors="replace"), re.M)]
    to_extensions = [(name, header) for name, header in included if owner[name] is None and owner.get(header)]
    between = {(owner[name], owner[header]) for name, header in included if owner[name] and owner.get(header) and owner[name] != owner[header]}
    core = [ROOT / name for name, extension in owner.items() if extension is None]
    return {
        "lines of the core": lines_of(core),
        "lines of source, bench/ and examples/": lines_of([*source, *files("bench", "examples")]),
        "lines of tests": lines_of([*files("tests"), *(p for p in files("extensions") if is_test(p))]),
        "includes of an extension's header in the core": len(to_extensions),
        "types of extensions that the core names": len(named(core, [ROOT / name for name, extension in owner.items() if extension and name.endswith(".h")])),
        "pairs of extensions that include each other's headers": len({frozenset(pair) for pair in between if pair[::-1] in between}),
        "headers behind lockstep.h": len(behind("lockstep.h")),
        "members of the largest struct": largest_struct([p for p in core if p.suffix == ".h"]),
    }


def slack(count):
    return count // 200


def main():
    failed, found = 0, counts()
    if "--lower" in sys.argv:
        text = pathlib.Path(__file__).read_text()
        for name, count in found.items():
            if count < LIMITS[name][0]:
                text = re.sub(rf'("{re.escape(name)}": \()\d+', rf"\g<1>{min(count + slack(count) // 2, LIMITS[name][0])}", text)
        pathlib.Path(__file__).write_text(text)
        return 0
    for name, count in found.items():
        limit, goal = LIMITS[name]
        print(f"{name}: {count} (at most {limit}, to come to {goal})")
        if count > limit:
            print("  above its limit: move or delete something" + ("" if name in GROW else "; this limit is never raised"))
        elif count + slack(count) < limit:
            print("  below its limit: run tests/house.py --lower, so that the limit follows")
        failed += count > limit or count + slack(count) < limit
    print(f"{len(found) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
