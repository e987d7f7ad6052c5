#!/usr/bin/env python3
"""Keeps the code in the documents true. Every ```cpp block of README.md, CONTRIBUTING.md, docs/*.md and extensions' pages must be one of:

    ```cpp run           a whole program: compiled, linked and run; it must exit with 0
    ```cpp body          statements: wrapped into a main() that has `namespace ls = lockstep`, then as above
    ```cpp from FILE     lines of that file, word for word up to blanks; "..." leaves something out

Most of what a block costs to compile is our header, so all blocks become one program: each main() is a function in a namespace of
its own. Every block still runs in a process and a folder of its own.

Links to files of the repository are followed, and tests that tables name must exist. Usage: run.py --library liblockstep.a -- COMPILER...
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WRAPPED = "#include <lockstep.h>\n#include <iostream>\nnamespace ls = lockstep;\nint main() {\n%s\nreturn 0;\n}\n"
INCLUDE = re.compile(r"^#include.*\n", re.M)
RUN = re.compile(r"(^int run\(\) \{\n.*?)^\}\n", re.M | re.S)
# No -march: programs in documents contain no kernels, and baseline code may call a library built for any processor.
FLAGS = ["-std=c++20", "-O0", "-I", str(ROOT)]
LIBRARIES = ["-fopenmp", "-pthread", "-lz", "-lpng", "-ljpeg", "-lsodium", "-lfmt"]


def documents():
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()] + sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/**/*.md")])


class Block:
    """A ```cpp block: its page, the line of its ```, the words after cpp, and its text."""

    def __init__(self, page, line, words, text):
        self.page, self.line, self.kind, self.words, self.text = page, line, words[0] if words else "", words, text
        numbered = f'#line {line + 1} "{page.relative_to(ROOT)}"\n{text}'
        self.program = WRAPPED % numbered if self.kind == "body" else numbered
        self.includes = "".join(INCLUDE.findall(self.program))

    def joined(self, number):
        """Its includes, then everything else in a namespace, with run() instead of main()."""
        text = self.program.replace("int main() {", "int run() {")
        if self.kind == "run":  # main() ends at the first brace at the beginning of a line
            text = RUN.sub(r"\1return 0; }\n", text)
        return f"{self.includes}namespace block_{number} {{\n{INCLUDE.sub(chr(10), text)}}}\n"


def blocks(document):
    text = document.read_text()
    for found in re.finditer(r"^```cpp([^\n]*)\n(.*?)^```", text, re.M | re.S):
        yield Block(document, text.count("\n", 0, found.start()) + 1, found[1].split(), found[2])


def check_quote(text, path):
    squeeze = lambda s: re.sub(r"\s+", "", s)  # noqa: E731 (pages are narrower than sources)
    source, at = squeeze((ROOT / path).read_text()), 0
    for part in text.split("...\n"):
        found = source.find(squeeze(part), at)
        if found < 0:
            return f"these lines are not in {path} (any more), or not in this order:\n{part}"
        at = found + len(squeeze(part))
    return None


def precompile(folder, options):
    """Makes g++ use a precompiled header of ours in `folder`, for programs that include it first."""
    subprocess.run(options.compiler + FLAGS + ["-w", "-x", "c++-header", str(ROOT / "lockstep.h"), "-o", f"{folder}/lockstep.h.gch"], check=True)
    options.compiler = options.compiler + ["-I", folder]


def build(text, program, options):
    """The compiler's errors; "" if the program is valid."""
    source = program.with_suffix(".cpp")
    source.write_text(text)
    command = options.compiler + FLAGS + ["-I", str(pathlib.Path(options.library).parent), str(source), "-o", str(program), options.library] + options.link + LIBRARIES
    done = subprocess.run(command, capture_output=True, text=True)
    return "does not compile:\n" + "\n".join(done.stderr.splitlines()[:30]) if done.returncode else None


def run_program(program, *args):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([program, *args], capture_output=True, text=True, cwd=folder, timeout=300)
    return f"exit code {run.returncode}:\n{run.stdout}{run.stderr}" if run.returncode else None


def check_programs(together, options, headers):
    """[(block, problem or None)] of blocks joined into one program. If they do not compile together, each half is tried
    separately.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "blocks"
        runs = ", ".join(f"block_{i}::run" for i in range(len(together)))
        text = "".join(block.joined(i) for i, block in enumerate(together))
        text += f'#line 1 "main"\nint main(int, char** words) {{ return (int (*[])()){{{runs}}}[std::atoi(words[1])](); }}\n'
        problem = build(text, program, options)
        if not problem:
            return [(block, run_program(program, str(i))) for i, block in enumerate(together)]
        if len(together) == 1:
            return [(together[0], problem)]
    if not (pathlib.Path(headers) / "lockstep.h.gch").exists():
        precompile(headers, options)  # worthwhile for the many compilations that follow
    half = len(together) // 2
    return check_programs(together[:half], options, headers) + check_programs(together[half:], options, headers)


def check_other(block):
    if block.kind == "from" and len(block.words) == 2:
        return check_quote(block.text, block.words[1])
    return "expected ```cpp run, ```cpp body or ```cpp from FILE"


def dead_links(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists():
            yield f"links to {target}, which does not exist"


def missing_tests(document):
    """In tables whose last column is "tests", every `name` must be the beginning of a test's name."""
    tests = "".join(path.read_text() for path in sorted([*(ROOT / "tests").rglob("*"), *ROOT.glob("extensions/*/tests/**/*")]) if path.suffix in (".cpp", ".py") and path != pathlib.Path(__file__))
    listed = False
    for line in document.read_text().splitlines():
        cells = line.split("|")
        listed = line.startswith("|") and (listed or cells[-2].strip() == "tests")
        for name in re.findall("`([^`]+)`", cells[-2]) if listed else ():
            if '"' + name not in tests:
                yield f"no test's name begins with '{name}'"


def wrong_decisions(document):
    """A decision that replaces another must be named there, and the index must list all decisions."""
    if document.name != "decisions.md":
        return
    text = document.read_text()
    words = re.split(r"^### (\d+)\. .*\n", text, flags=re.M)
    decisions = {int(number): words[2 * i + 2] for i, number in enumerate(words[1::2])}
    for number, decision in decisions.items():
        for other in {int(n) for sentence in re.findall(r"Replaces ([^.]*)\.", decision) for n in re.findall(r"\b\d+\b", sentence)}:
            if not re.search(rf"\*Replaced[^*]* by {number}\b", decisions.get(other, "")):
                yield f"{number} replaces {other}, which does not say so"
    index = " ".join(re.findall(r"^- \[.*?\]\(#.*?\): (.*)$", text, re.M))
    listed = {n for a, b in re.findall(r"(\d+)(?: to (\d+))?", index) for n in range(int(a), int(b or a) + 1)}
    if listed != set(decisions):
        yield f"its index and its headings differ in {sorted(listed ^ set(decisions))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--link", default="", help="further libraries, with commas between")
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()
    options.link = [word for word in options.link.split(",") if word]

    passed = failed = 0
    all_blocks = [block for document in documents() for block in blocks(document)]
    programs = [block for block in all_blocks if block.kind in ("run", "body")]
    # a block must not depend on an include of an earlier one
    programs.sort(key=lambda block: block.includes.count("\n"))
    results = [(block, check_other(block)) for block in all_blocks if block not in programs]
    with tempfile.TemporaryDirectory() as folder:
        results += check_programs(programs, options, folder)
    results.sort(key=lambda result: (documents().index(result[0].page), result[0].line))
    results = [(block.page, block.line, problem) for block, problem in results]
    results += [(d, 1, "; ".join([*dead_links(d), *missing_tests(d), *wrong_decisions(d)]) or None) for d in documents()]
    for document, line, problem in results:
        passed, failed = passed + (problem is None), failed + (problem is not None)
        if problem:
            print(f"{document.relative_to(ROOT)}:{line}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
