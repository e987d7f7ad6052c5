#!/usr/bin/env python3
"""Two rules about pages that need no build.

- What the Unreleased section of CHANGELOG.md names in backticks exists: options (as docs/options.md lists them), names of code (in
  headers, tables or generated pages), LOCKSTEP_* variables (docs/environment.md), files. Names in the first column of its table of
  changes are gone: no training has these options.
- A section with figures (a number with a unit of time, bytes or speed, or %) says how to get them: it has a command, in a block or in
  backticks, or names its test or bench/RESULTS.md. Some sections have limits or formulas, not measurements: EXCEPTIONS.

Prints what breaks a rule, then "N passed, M failed"; a case is a name, or a page.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Generated pages say ranges and defaults only.
GENERATED = ("options.md", "config.md", "environment.md")
FIGURE = re.compile(r"(?<![\w.-])\d[\d.,]*\s?(?:ms|µs|us|s|%|KiB|MiB|GiB|MB|GB|(?:GB|tokens|samples|images|TFLOP)/s)(?![\w/])"
                    r"|\d(?:\.\d+)? times as|\d(?:\.\d+)? times (?:faster|slower|less|more)")
SOURCE = re.compile(r"`(?:\S*/)?(?:lockstep|gpt|mlp|cnn|vit|bench_\w+|test_\w+|python3?|\w+\.(?:py|sh)) [^`]*`|^    (?:gpt|lockstep) "
                    r"|bench_\w+|test_\w+|bench/RESULTS\.md|tests/\S+\.(?:py|cpp)|scripts/\S+\.(?:py|sh)", re.M)
# Sections whose figures are limits, defaults or calculations that the section explains; pages of extensions by the
# extension's name.
EXCEPTIONS = {
    "collectives.md": ["All to one and back", "The ring", "Few steps for small data"],
    "cuda-kernels.md": ["Kernels along rows"],  # commands are elsewhere on the page
    "cudnn_convolutions": ["What it costs"],
    "ddp.md": ["Buckets"],
    "faults.md": ["Ranks"],  # its last column names the tests
    "forecast": ["What the tables say"],  # commands are elsewhere on the page
    "launcher": ["Output"],
    "models.md": ["Cross entropy without all logits"],
    "onebit.md": ["1-bit optimizers", "The four optimizers"],
    "pipeline.md": ["What goes on", "When the formulas hold", "How a model is cut"],
    "serving": ["Strangers", "Blocks"],
    "testing-cuda.md": ["Streams, memory and graphs"],
    "vision": ["Folders of pictures"],
}


def read(*patterns):
    return "\n".join(path.read_text(errors="replace") for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.is_file())


def wrong_names():
    """[(what, problem or None)] of the names in the changelog's Unreleased section."""
    section = re.search(r"^## \[Unreleased\].*?(?=^## \[|\Z)", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S)[0]
    folders = "{}/**/*".format
    code = read("lockstep.h", "meson.options", "docs/config.md", "extensions/inference/configuration.md",
                *(folders(top) + end for top in ("tensor", "autograd", "extensions", "nn", "optim", "data", "dist", "parallel", "zero", "engine",
                                                 "pipeline", "train", "trace", "apps") for end in (".h", ".def", ".inc")))
    code = re.sub(r"//.*", "", code)
    words, options = set(re.findall(r"[A-Za-z_]\w*", code + read("docs/options.md"))), set(OPTION.findall(read("docs/options.md")))
    sections = re.findall(r"^## ((?:gpt|mlp|cnn) train\n.*?)(?=^## |\Z)", read("docs/options.md"), re.M | re.S)
    of_trainings = set(OPTION.findall("".join(sections)))
    variables = set(re.findall(r"^\| `(LOCKSTEP_\w+)`", read("docs/environment.md"), re.M))
    for row in re.findall(r"^\| `[^|]*", section, re.M):
        for option in OPTION.findall(row):
            yield option, f"'{option}' is said to be gone, and exists" if option in of_trainings else None
    for quoted in re.findall(r"`([^`]+)`", re.sub(r"^\| `[^|]*", "", section, flags=re.M)):
        header = re.fullmatch(r"<lockstep/(\w+)\.h>", quoted)
        path = re.match(r"[\w./-]+/[\w.-]+\.\w+", quoted)
        if header:
            here = [ROOT / "lockstep" / f"{header[1]}.h", ROOT / "extensions" / header[1]]
            yield quoted, None if any(place.exists() for place in here) else f"there is no header {quoted}"
            continue
        if path:
            yield quoted, None if (ROOT / path[0]).exists() else f"there is no file {path[0]}"
            continue
        for option in OPTION.findall(quoted):
            yield option, None if option in options else f"no program has {option}"
        for variable in re.findall(r"LOCKSTEP_\w+", quoted):
            yield variable, None if variable in variables else f"{variable} is not in docs/environment.md"
        for word in re.findall(r"(?<![-\w])[A-Za-z_]\w{2,}", quoted):
            if not word.startswith("LOCKSTEP_") and word != "torch":
                yield word, None if word in words else f"no header, table or page of options has {word}"


def figures_without_source(page):
    """The first lines of sections that have figures, and do not say where they come from."""
    sections, fenced = [(1, "", [])], False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        fenced ^= line.startswith("```")
        if not fenced and re.match("#+ ", line):
            sections.append((number, line.lstrip("# "), []))
        sections[-1][2].append(line)
    for number, heading, lines in sections:
        body = "\n".join(lines)
        text = re.sub(r"^```.*?^```", "", body, flags=re.M | re.S)
        figures = FIGURE.findall(re.sub(r"`[^`]*`", "", text))
        commands = [words for words in re.findall(r"^```([^\n]*)\n.*?^```", body, re.M | re.S) if not words.startswith(("cpp", "json"))]
        if figures and not commands and not SOURCE.search(text) and heading not in EXCEPTIONS.get(page.parent.name if page.name == "README.md" else page.name, ()):
            yield f"{page.relative_to(ROOT)}:{number}: '{heading}' has figures ({', '.join(figures[:4])}), and no command or link to bench/RESULTS.md"


def main():
    results = [problem and f"CHANGELOG.md: {problem}" for name, problem in wrong_names()]
    for page in [ROOT / "README.md", *sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/**/*.md")])]:
        if page.name not in GENERATED:
            results.append("\n".join(figures_without_source(page)) or None)
    for problem in filter(None, results):
        print(problem)
    failed = sum(map(bool, results))
    print(f"{len(results) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
