#!/usr/bin/env python3
"""Holds docs/names.tsv to the code: every line of C++ compiles, with lockstep.h or with the header that its row names, and
every name of ours is in that header or behind it. docs/names.md must be what scripts/names_page.py writes.

All rows become one program with a function for each, so that an error names its row; it is checked, not translated.
Usage: names.py TABLE BUILD -- COMPILER... Prints what is wrong, then "N passed, M failed"; a case is a row or a rule.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import names_page  # noqa: E402
from public_headers import behind  # noqa: E402

LEAST = 300
# No -march: as in a user's project.
FLAGS = ["-std=c++20", "-O0", "-fsyntax-only", "-w"]


def badly_written(text):
    """What is wrong with the form of rows."""
    seen = {}
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split("\t")
        if len(fields) == 1:
            continue
        where = f"docs/names.tsv:{number}"
        if len(fields) not in (3, 4) or not all(field and field == field.strip() for field in fields):
            yield f"{where}: expected their name, ours, a line of C++ and perhaps a header, with single tabs between, got {len(fields)} fields"
            continue
        if "|" in line or "`" in line or "](" in line:
            yield f"{where}: the page cannot show '|', '`' or ']('; write the line without it"
        if fields[2].endswith(";"):
            yield f"{where}: a line needs no ';' at its end"
        if fields[0] in seen:
            yield f"{where}: {fields[0]} is in line {seen[fields[0]]}, too; join the rows"
        seen.setdefault(fields[0], number)


# (rows that the check must refuse, part of what it says)
WRONG = [
    ("torch.abs\tabs\n", "expected their name"),
    ("torch.abs\t\tls::abs(x)\n", "expected their name"),
    ("torch.abs\tabs\tls::abs(x)\tlayers\tmore\n", "expected their name"),
    ("torch.abs\tabs\tx | y\n", "cannot show"),
    ("torch.abs\tabs\tapply([](int) {})\n", "cannot show"),
    ("torch.abs\tabs\tls::abs(x);\n", "no ';'"),
    ("torch.abs\tabs\tls::abs(x)\ntorch.abs\tabs\tls::abs(y)\n", "in line 1, too"),
]


def undeclared(rows):
    """{line: problem} of rows whose name of ours is not in their header, nor in those that it includes."""
    words = {}
    for row in rows:
        if row.header not in words:
            file = names_page.file_of(row.header)
            if not (ROOT / file).exists():
                yield row.line, f"there is no header {file}"
                continue
            code = "\n".join(re.sub(r"//.*", "", (ROOT / path).read_text()) for path in behind("lockstep.h", file))
            words[row.header] = set(re.findall(r"[A-Za-z_]\w*", code))
        name = "operator" if "operator" in row.ours else row.ours.split("::")[-1]
        if not {name, name.removesuffix("_")} & words[row.header]:
            yield row.line, f"{names_page.file_of(row.header)} and what it includes do not have {name}"


def program(rows):
    """C++ with a function for each row. Rows with no header come first, so they see lockstep.h alone."""
    parts = ["#include <lockstep.h>\n#include <iostream>\nnamespace ls = lockstep;\n"]
    for header in sorted({row.header for row in rows}):
        parts.append(f"#include <lockstep/{header}.h>\n" if header else "")
        parts.append(f'namespace names {{\n#line 1 "variables of {header or "lockstep"}.h in scripts/names_page.py"\n')
        for names, kind, _ in names_page.GIVEN.get(header, []):
            if kind.startswith("struct {"):  # a type of the user's
                parts.append(f"struct Own {kind.removeprefix('struct ').removesuffix('&')};\n")
                kind = "Own&"
            parts += [f"extern {kind} {name};\n" for name in names.split(", ")]
        parts += [f'#line {row.line} "docs/names.tsv"\nvoid row_{row.line}() {{ {row.code}; }}\n' for row in rows if row.header == header]
        parts.append("}  // namespace names\n")
    return "".join(parts)


def lines_in(said):
    """The lines of the table that a compiler's messages name."""
    return {int(number) for number in re.findall(r"docs/names\.tsv:(\d+)", said)}


def compile_errors(rows, build, compiler):
    """(messages, {line}) of the rows that do not compile."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "names.cpp"
        source.write_text(program(rows))
        done = subprocess.run([*compiler, *FLAGS, "-I", str(ROOT), "-I", build, str(source)], capture_output=True, text=True)
    return (done.stderr, lines_in(done.stderr)) if done.returncode else ("", set())


def main():
    table, build, _, *compiler = sys.argv[1:]
    text = pathlib.Path(table).read_text()
    rows, problems = names_page.rows(text), list(badly_written(text))
    checks = [(not problems, "\n".join(problems)), (len(rows) >= LEAST, f"docs/names.tsv has {len(rows)} rows, expected at least {LEAST}")]
    checks.append((names_page.PAGE.exists() and names_page.PAGE.read_text() == names_page.page(text), "docs/names.md is not what the table says: scripts/names_page.py"))
    for wrong, expected in WRONG:
        said = "\n".join(badly_written(wrong))
        checks.append((expected in said, f"expected {expected!r} about {wrong!r}, got {said!r}"))
    said, failed_lines = compile_errors(rows, build, compiler)
    checks.append((not said or failed_lines, "the program of all rows does not compile, and no row is to blame"))
    missing = dict(undeclared(rows))
    if said:
        print("\n".join([line for line in said.split("\n") if "error" in line or "docs/names.tsv" in line][:60]) or said[:4000])
    checks += [(row.line not in failed_lines and row.line not in missing,
                f"docs/names.tsv:{row.line}: {row.theirs}: {missing.get(row.line, 'does not compile')}") for row in rows]
    for is_right, what in checks:
        if not is_right:
            print(what)
    failed = sum(not is_right for is_right, _ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
