#!/usr/bin/env python3
"""Rules about files that a compiler does not check: which folders may include which, what public headers need, how long
files may be.

Prints violations, then "N passed, M failed"; a case is one rule for one folder.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from public_headers import ON_PURPOSE, behind, public_headers  # noqa: E402

# The table of folders in meson.build: a folder may include the folders listed there, and what those may include.
USES = ast.literal_eval(re.search(r"^folders = (\{.*?^\})", (ROOT / "meson.build").read_text(), re.M | re.S)[1])
EXTENSIONS = ast.literal_eval(re.search(r"^extensions = (\{.*?^\})", (ROOT / "meson.build").read_text(), re.M | re.S)[1])
EXTENSIONS |= {path.parent.name: ["train"] for path in ROOT.glob("extensions/*/meson.build") if path.parent.name not in EXTENSIONS}
USES |= {f"extensions/{name}": uses for name, uses in EXTENSIONS.items()}
USES["apps"] = ["train"]
# Programs of extensions are built in apps/, and may use what is there, and programs of the extensions that theirs uses.
WITH_PROGRAMS = [f"extensions/{name}" for name in EXTENSIONS if (ROOT / f"extensions/{name}/programs").is_dir()]
USES |= {f"{name}/programs": ["apps", name, *(f"{other}/programs" for other in USES[name] if other in WITH_PROGRAMS)] for name in WITH_PROGRAMS}
USES["lockstep"] = list(USES)  # the groups of public headers

# Files that people come to study have their own budgets of lines; every other source has the general one.
GENERAL_BUDGET = 400
BUDGETS = {"autograd/tape.cpp": 250, "autograd/tape.h": 220, "tensor/kernels.h": 150, "optim/loss_scaler.cpp": 150,
           "dist/schedules/ring.cpp": 70, "dist/executor.cpp": 280,
           "parallel/reducer.cpp": 345, "parallel/naive_ddp.cpp": 40, "parallel/ddp.cpp": 335,
           "zero/partition.cpp": 120, "zero/stage1.cpp": 100, "zero/stage2.cpp": 100, "zero/stage3.cpp": 300,
           "pipeline/schedules/one_f_one_b.cpp": 30, "pipeline/engine.cpp": 250, "nn/models/gpt.cpp": 200,
           "apps/gpt.cpp": 200, "apps/classifier.cpp": 150, "apps/mlp.cpp": 30, "apps/cnn.cpp": 30}
# A header and all files behind it have a budget together, so that a long file is not merely divided.
FAMILIES = {"autograd/tape backward record": 900, "dist/executor": 350, "parallel/reducer gradient_sum": 627, "parallel/ddp": 452,
            "zero/update": 104, "zero/offload/tiles": 246, "zero/stage3 gather": 430, "engine/step_graphs": 360,
            "pipeline/engine module link setup transfers": 1533}

STANDARD = set("""algorithm any array atomic barrier bit bitset charconv chrono cmath compare complex concepts condition_variable
    coroutine cstddef cstdint cstdio cstdlib cstring ctime deque exception filesystem format forward_list fstream functional
    future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new
    numbers numeric optional ostream queue random ranges ratio regex set shared_mutex source_location span sstream stack
    stdexcept stop_token streambuf string string_view system_error thread tuple type_traits typeindex typeinfo unordered_map
    unordered_set utility valarray variant vector version""".split())


def may_use(folder):
    allowed = {folder}
    for below in USES[folder]:
        allowed |= may_use(below)
    return allowed


def includes(path, pattern):
    text = path.read_text(errors="replace")
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"#\s*include\s*" + pattern, line)
        if found:
            yield number, found.group(1)


def folder_of(path):
    """The folder in the table that a path below the root belongs to; its first folder if there is none."""
    parents = [str(p) for p in pathlib.PurePath(path).parents]
    return next((p for p in parents if p in USES), str(path).split("/")[0])


def sources(folder):
    files = (p for p in (ROOT / folder).rglob("*") if p.suffix in (".h", ".cpp", ".def", ".inc"))
    return sorted(p for p in files if folder_of(p.relative_to(ROOT)) == folder)


def is_test(path):
    return "tests" in path.relative_to(ROOT).parts


def check_direction(folder):
    for path in sources(folder):
        if is_test(path):
            continue
        for number, name in includes(path, r"<lockstep/(\w+)\.h>"):
            if name in EXTENSIONS and f"extensions/{name}" not in may_use(folder):
                yield f"{path.relative_to(ROOT)}:{number}: {folder}/ may not include from the extension {name}"
        for number, header in includes(path, r'"([^"]+)"'):
            top = folder_of(header)
            where = f"{path.relative_to(ROOT)}:{number}"
            if "/" not in header:
                yield f'{where}: "{header}" should be written from the root of the repository'
            elif top not in may_use(folder):
                yield f"{where}: {folder}/ may not include from {top}/ (only from {', '.join(sorted(may_use(folder)))})"


def check_installed(folder):
    """Extensions include installed headers, as a user's own code would."""
    if folder.removeprefix("extensions/") not in EXTENSIONS:
        return
    others = may_use(folder) - {folder}  # what only its own header leads to is not installed with the core
    usable = set(public_headers([name for name in EXTENSIONS if f"extensions/{name}" in others]))
    for path in sources(folder):
        if is_test(path):
            continue
        for number, header in includes(path, r'"([^"]+)"'):
            if header not in usable and not header.startswith(folder + "/"):
                yield f"{path.relative_to(ROOT)}:{number}: {header} is not installed: use what lockstep.h, lockstep/kernels.h or lockstep/extend.h includes"


def check_public_headers(folder):
    for header in behind("lockstep.h", *(f"extensions/{name}/{name}.h" for name in EXTENSIONS)):
        if folder_of(header) != folder or header in ON_PURPOSE:
            continue
        for number, name in includes(ROOT / header, r"<([^>]+)>"):
            if name not in STANDARD:
                yield f"{header}:{number}: a public header may include the standard library only, not <{name}>"


def check_length(folder):
    for path in sources(folder):
        if path.suffix == ".inc" or is_test(path):  # tables; tests may be longer
            continue
        name = str(path.relative_to(ROOT))
        budget, lines = BUDGETS.get(name, GENERAL_BUDGET), len(path.read_text(errors="replace").splitlines())
        if lines > budget:
            yield f"{name}: {lines} lines, the budget is {budget}"


def check_families(folder):
    for family, budget in FAMILIES.items():
        home, _, names = family.rpartition("/")
        if home.split("/")[0] == folder:
            lines = sum(len(path.read_text().splitlines()) for path in sources(folder) if path.parent == ROOT / home and path.stem in names.split())
            if not 0 < lines <= budget:
                yield f"{family}: {lines} lines together, the budget is {budget}"


def check_opening(folder):
    for path in sources(folder):
        if path.suffix == ".cpp" and path.with_suffix(".h").exists():  # its header has the comment
            continue
        head = path.read_text(errors="replace").split("\n")[:2]
        if not any(line.startswith("//") for line in head):
            yield f"{path.relative_to(ROOT)}:1: a file opens with a line that says what it is"


# Words of our own in place of the field's. Identifiers do not have them.
OLD_WORDS = dict(whole="full", most="max", seen="visited", shown="printed", told="reported", drawn="sampled", alone="single",
                 looked="checked", came="arrived", how="options", roster="rank table", door="listener",
                 turns="rounds", sliced="sharded", spread="experts", forgotten="discarded", stashed="cleared", shows="exposes")
# Names that others chose: of PyTorch, meson, liburing.
FOREIGN = {"most_recent", "most_common", "link_whole", "io_uring_cqe_seen"}


def check_names(folder):
    for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in (".h", ".cpp", ".cu", ".def", ".inc")):
        code = re.sub(r'//[^\n]*|R"\(.*?\)"|"(?:[^"\\\n]|\\.)*"', lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text(errors="replace"), flags=re.S)
        for number, line in enumerate(code.split("\n"), 1):
            for name in re.findall(r"[A-Za-z_]\w*", line):
                for word in re.findall(r"[A-Z]?[a-z]+", name):
                    if word.lower() in OLD_WORDS and name not in FOREIGN:
                        yield f"{path.relative_to(ROOT)}:{number}: {name} says {word.lower()}, for which the field has a word such as {OLD_WORDS[word.lower()]}"


# Functions that depend on the program's locale; base/classic_text.h and str() do the same without it.
BY_LOCALE = re.compile(r"""\b(sto[df]|stold|strto[df]|strtold|atof|tolower|toupper|isalpha|isalnum|isspace)\(|\bostringstream\b
                           |scanf\(.*%l?[efg]|printf\(.*"[^"]*%[-+0-9.*]*[efg]|\bsetprecision\(""", re.X)


def check_locale(folder):
    for path in sources(folder):
        if is_test(path):
            continue
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if BY_LOCALE.search(line.split("//")[0]) and name not in ("base/check.cpp", "base/classic_text.cpp"):
                yield f"{name}:{number}: what this reads or writes depends on the locale; see base/classic_text.h"


def main():
    passed = failed = 0
    checks = [(check, folder) for folder in USES for check in (check_direction, check_installed, check_public_headers, check_length, check_families, check_opening, check_locale)]
    for check, folder in [*checks, *((check_names, top) for top in sorted({folder.split("/")[0] for folder in USES} | {"tests", "bench", "examples"}))]:
        problems = list(check(folder))
        for problem in problems:
            print(problem)
        passed, failed = passed + (not problems), failed + bool(problems)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
