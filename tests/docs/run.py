#!/usr/bin/env python3
"""Keeps the code in the documents true. Every ```cpp block of README.md, CONTRIBUTING.md and docs/*.md must be one of:

    ```cpp run           a whole program: compiled, linked and run; it must exit with 0
    ```cpp body          statements: wrapped into a main() that has `namespace ls = lockstep`, then as above
    ```cpp from FILE     lines of that file, word for word up to blanks; "..." leaves something out

Links to files of the repository are followed, and tests that tables name must exist. Usage: run.py --library liblockstep.a -- COMPILER...
"""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WRAPPED = "#include <lockstep.h>\n#include <iostream>\nnamespace ls = lockstep;\nint main() {\n%s\n}\n"
# No -march: a document's program holds no kernels, and baseline code may call the library built for any processor.
FLAGS = ["-std=c++20", "-O0", "-Wall", "-I", str(ROOT)]
LIBRARIES = ["-fopenmp", "-pthread", "-lz", "-lpng", "-ljpeg", "-lsodium", "-lfmt"]


def documents():
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists()] + sorted((ROOT / "docs").glob("*.md"))


def blocks(document):
    """(line number, words after cpp, text) of every ```cpp block."""
    for found in re.finditer(r"^```cpp([^\n]*)\n(.*?)^```", document.read_text(), re.M | re.S):
        yield document.read_text()[: found.start()].count("\n") + 1, found.group(1).split(), found.group(2)


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
    """Most of what a block costs is our header: compiled once, g++ takes it from `folder` where a block includes it first."""
    subprocess.run(options.compiler + FLAGS + ["-w", "-x", "c++-header", str(ROOT / "lockstep.h"), "-o", f"{folder}/lockstep.h.gch"], check=True)
    options.compiler = options.compiler + ["-I", folder]


def check_program(text, options):
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder) / "block.cpp", pathlib.Path(folder) / "block"
        source.write_text(text)
        command = options.compiler + FLAGS + [str(source), "-o", str(program), options.library] + options.link + LIBRARIES
        build = subprocess.run(command, capture_output=True, text=True)
        if build.returncode:
            return "does not compile:\n" + "\n".join(build.stderr.splitlines()[:30])
        run = subprocess.run([program], capture_output=True, text=True, cwd=folder, timeout=300)
        if run.returncode:
            return f"exit code {run.returncode}:\n{run.stdout}{run.stderr}"
    return None


def check_block(words, text, options):
    kind = words[0] if words else ""
    if kind == "run":
        return check_program(text, options)
    if kind == "body":
        return check_program(WRAPPED % text, options)
    if kind == "from" and len(words) == 2:
        return check_quote(text, words[1])
    return "expected ```cpp run, ```cpp body or ```cpp from FILE"


def dead_links(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not re.match(r"[a-z]+:", target) and not (document.parent / target).exists():
            yield f"links to {target}, which is not there"


def missing_tests(document):
    """In tables whose last column is "tests", every `name` must open the name of a test."""
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*")) if path.suffix in (".cpp", ".py") and path != pathlib.Path(__file__))
    listed = False
    for line in document.read_text().splitlines():
        cells = line.split("|")
        listed = line.startswith("|") and (listed or cells[-2].strip() == "tests")
        for name in re.findall("`([^`]+)`", cells[-2]) if listed else ():
            if '"' + name not in tests:
                yield f"no test's name begins with '{name}'"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--link", default="", help="further libraries, with commas between")
    parser.add_argument("compiler", nargs="+")
    options = parser.parse_args()
    options.link = [word for word in options.link.split(",") if word]

    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        precompile(folder, options)
        jobs = [(d, line, pool.submit(check_block, words, text, options)) for d in documents() for line, words, text in blocks(d)]
        results = [(d, line, job.result()) for d, line, job in jobs]
    results += [(d, 1, "; ".join([*dead_links(d), *missing_tests(d)]) or None) for d in documents()]
    for document, line, problem in results:
        passed, failed = passed + (problem is None), failed + (problem is not None)
        if problem:
            print(f"{document.relative_to(ROOT)}:{line}: {problem}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
