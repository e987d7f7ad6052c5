#!/usr/bin/env python3
"""Rules about words: comments in sources, and the length of pages.

- Every public declaration (in the headers that scripts/public_headers.py lists) has a comment, and so has every row of a
  .def table. What says itself needs none: see Header.judge().
- Few comment lines begin with What, Of, Whether, Who, Whose or Where: such comments have no verb.
- No picture in a comment is torn, as formatters do that take it for sentences, and no comment is wider than 120 columns.
- Paragraphs, list items and cells of pages have at most 60 words, and some pages a most number of lines.

Usage: plain_words.py [ROOT]. Prints what breaks a rule, then the counts, then "N passed, M failed"; a case is one rule.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
# The most that each rule allows.
MAX_SIX, MAX_WORDS, MAX_COLUMNS = 60, 60, 120
MAX_LINES = {"README.md": 150, "docs/decisions.md": 600, "CHANGELOG.md": 150}

TOKEN = re.compile(r"""R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*(?:.|\n)*?\*/
                       |[A-Za-z_~]\w*|[0-9][\w.']*|::|->|\s+|.""", re.X)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)
NAME = re.compile(r"[A-Za-z_]\w*$")
CLASSES = ("class", "struct", "union")


def without_template(words):
    """The words behind a leading template <...>."""
    depth = 0
    for k, word in enumerate(words[1:] if words[:1] == ["template"] else (), 1):
        depth += (word == "<") - (word == ">")
        if depth == 0:
            return words[k + 1:]
    return words


def function_name(words):
    """The word before the parameters; "" if these are not a function's words."""
    if "operator" in words:
        at = words.index("operator")
        return "".join(words[at:words.index("(", at + 2)])
    depth = 0
    for before, word in zip([""] + words, words):
        depth += (word == "<") - (word == ">" and depth > 0)
        if word == "(" and depth == 0:
            return before
    return ""


def is_function(words):
    """False for a variable whose value has a parenthesis."""
    return "(" in words and not ("=" in words and words.index("=") < words.index("(") and "operator" not in words)


class Header:
    """The public declarations of a header: (line, name, whether a comment covers it)."""

    def __init__(self, text):
        self.code, self.single, self.beside, self.found = [], set(), set(), []
        self.covered_to = {}  # name: the last line of its latest declaration with a comment
        line, last = 1, 0
        for match in TOKEN.finditer(DIRECTIVE.sub(lambda m: "\n" * m[0].count("\n"), text)):
            token = match[0]
            if token.startswith(("//", "/*")):
                (self.beside if line == last else self.single).update(range(line, line + token.count("\n") + 1))
            elif not token.isspace():
                self.code.append((line, token))
                last = line
            line += token.count("\n")
        self.scope(0, "", True)

    def skip(self, i):
        """The place behind the bracket that closes the one at i."""
        depth = 1
        while depth and i + 1 < len(self.code):
            i += 1
            depth += (self.code[i][1] in "([{") - (self.code[i][1] in ")]}")
        return i + 1

    def scope(self, i, cls, public):
        """Reads a namespace, or the class `cls`, from i to its closing brace, and returns the place behind it."""
        visible, statement = public and cls[:6] != "class ", []
        while i < len(self.code):
            token = self.code[i][1]
            if token == "}":
                return i + 1
            if token in "([":
                statement += self.code[i:self.skip(i)]
                i = self.skip(i)
            elif token == "{":
                i, statement = self.brace(i, statement, cls, visible)
            elif token == ":" and len(statement) == 1 and statement[0][1] in ("public", "private", "protected"):
                visible, statement = public and statement[0][1] == "public", []
                i += 1
            elif token == ";":
                if visible:
                    self.judge(statement, cls, self.code[i][0], self.code[i][0])
                statement = []
                i += 1
            else:
                statement.append(self.code[i])
                i += 1
        return i

    def brace(self, i, statement, cls, visible):
        """Reads what begins with the brace at i: (place behind it, words of the statement that goes on there)."""
        words, end = [token for _, token in statement], self.skip(i)
        head, line, last = without_template(words), self.code[i][0], self.code[end - 1][0]
        if "namespace" in words or (words[:1] == ["extern"] and len(words) == 2):
            names = [word for word in words if NAME.match(word) and word not in ("namespace", "inline")]
            hidden = "namespace" in words and (not names or names[-1] in ("detail", "internal"))
            return (end if hidden else self.scope(i + 1, "", visible)), []
        if head[:1] and head[0] in (*CLASSES, "enum"):
            if visible:
                self.judge(statement + [(line, "{")], cls, line, last)
            names = [word for word in head[1:] if NAME.match(word) and word not in ("final", "alignas")]
            if head[0] != "enum":
                self.scope(i + 1, f"{head[0]} {names[0] if names else ''}", visible)
            return end, [self.code[i]]  # a name may follow, and a semicolon does
        if is_function(words):
            after = words[max(k for k, word in enumerate(words) if word == ")") + 1:]
            value = ":" in after and NAME.match(words[-1]) and words[-1] not in ("const", "noexcept", "override", "final", "mutable")
            if not value and words[-1] != ",":  # else the brace is of a constructor's initializer a{1}
                if visible:
                    self.judge(statement, cls, line, last, [token for _, token in self.code[i:end]])
                return end, []
        return end, statement + [(line, "{}")]

    def judge(self, statement, cls, line, last, body=()):
        """Records a statement, the first line of whose braces is `line`, unless it says itself."""
        words = [token for _, token in statement]
        plain, kind = without_template(words), "function"
        if not plain or plain[0] in ("{", "friend", "static_assert", "extern") or re.fullmatch("[A-Z][A-Z_0-9]{2,}", plain[0]):
            return
        names = [word for word in plain[:plain.index("=") if "=" in plain else None] if NAME.match(word)]
        if plain[0] in (*CLASSES, "enum"):
            names = [word for word in names if word not in (*CLASSES, "enum", "final", "alignas")]
            if "{" not in words or names[:1] == ["Options"] or words[:3] == ["template", "<", ">"]:
                return  # a forward declaration, options that their class explains, a specialisation
            kind, name = "type", names[0] if names else ""
        elif plain[0] == "using":
            if "=" not in plain or plain[1] == "Options":
                return
            kind, name = "alias", plain[1]
        elif is_function(plain):
            name = function_name(plain)
            accessor = len(body) == 5 and body[1] == "return" and words[-4:-1] == [body[2].rstrip("_"), "(", ")"]
            if accessor or name in ("forward", "operator()", "operator=", "operator->", "begin", "end", cls.split(" ")[-1]) or name.startswith("~"):
                return
            pointed_to = name == "operator*" and words[words.index("(") + 1] == ")"
            if pointed_to or "override" in plain or plain[-2:] in (["=", "delete"], ["=", "default"]) or words[:3] == ["template", "<", ">"]:
                return
        elif cls or (">" in plain and "=" in plain and plain[plain.index("=") - 1] == ">"):
            return  # a field, which the class explains; a specialisation
        else:
            kind, name = "constant", names[-1] if names else ""
        first = statement[0][0]
        # One comment explains overloads, operators or constants that follow each other without a blank line.
        group = "constants" if kind == "constant" else "operators" if re.fullmatch(r"operator[-+*/%<>=!&|^]+", name) else name
        covered = first - 1 in self.single or any(k in self.beside for k in range(first, line + 1)) or self.covered_to.get(group, -1) + 1 >= first
        self.covered_to[group] = last if covered else self.covered_to.get(group, -1)
        self.found.append((first, f"{kind} {name}", covered))


def bare_rows(text):
    """(line, name) of rows of a table without a comment above or in them."""
    lines = text.split("\n")
    for n, line in enumerate(lines):
        if not re.match(r"[A-Z][A-Z_0-9]+\(", line):
            continue
        above, k = lines[n - 1].strip() if n else "", n
        while k < len(lines) - 1 and "(" in lines[k] and "//" not in lines[k] and not lines[k].rstrip().endswith("))") and k < n + 6:
            k += 1
        if not (above.startswith("//") and not above.startswith("// ---")) and not any("//" in row for row in lines[n:k + 1]):
            yield n + 1, re.split(r"[(,)]", line)[1].strip()


BAR = re.compile(r"│|(?<!\|)\|(?!\|)|(?<=-)\+|\+(?=-)")
BOX_DRAWING = re.compile(r"//   .*\S {3,}\S|// {20,}\S")
LEFT_OVER = re.compile(r"// *(\S+)( \S+){0,2}(?<![;.][;.])(?<!\);)$")


def torn(text):
    """Numbers of comment lines where a picture is torn: bars that stood below each other do not, or the words that a line
    had no room for are alone below its first word. And of lines that are too wide.
    """
    lines = [line if line.lstrip().startswith("//") else "" for line in text.split("\n")]
    for n, (above, line) in enumerate(zip([""] + lines, lines), 1):
        bars, bars_above = ({match.start() for match in BAR.finditer(part)} for part in (line, above))
        fewer, words = min(len(bars), len(bars_above)), LEFT_OVER.match(line)
        shifted = fewer >= 3 and 2 * len(bars & bars_above) < fewer
        below = words and BOX_DRAWING.match(above) and re.match("// *", above).end() == words.start(1)
        if shifted or (below and not bars and len(above) + 1 + len(words[1]) > MAX_COLUMNS) or len(line) > MAX_COLUMNS:
            yield n


def long_parts(text):
    """(line, words) of paragraphs, list items and cells that are too long; blocks of code do not count."""
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    part, begin = [], 1
    for n, line in enumerate(text.split("\n") + [""], 1):
        full = not line.strip() or line.startswith(("#", "|"))
        if full or re.match(r"\s*([-*]|\d+\.) ", line):
            if len(part) > MAX_WORDS:
                yield begin, len(part)
            part, begin = [], n
        if not full:
            part += line.split()
        for cell in line.split("|") if line.startswith("|") else ():
            if len(cell.split()) > MAX_WORDS:
                yield n, len(cell.split())


def main():
    listed = subprocess.run([sys.executable, str(ROOT / "scripts/public_headers.py")], capture_output=True, text=True, check=True)
    public = set(listed.stdout.split())
    rules = {name: [] for name in ("public declarations without a comment", "rows of tables without a comment",
                                   "comment lines without a verb", "torn pictures", "long paragraphs", "long pages")}
    bare, rows, six, pictures, parts, pages = rules.values()
    folders = [f for f in ROOT.iterdir() if f.is_dir() and not f.name.startswith((".", "build", "subprojects", "runs"))]
    files = [ROOT / "lockstep.h"] + [path for folder in folders for path in folder.rglob("*")]
    for path in sorted(f for f in files if f.suffix in (".h", ".cpp", ".cu", ".cuh", ".inc", ".def") and f.is_file()):
        text, name = path.read_text(errors="replace"), str(path.relative_to(ROOT))
        six += [f"{name}:{n}: {line.strip()}" for n, line in enumerate(text.split("\n"), 1)
                if re.search(r"//[/!]*<? *(What|Of|Whether|Who|Whose|Where)\b", line)]
        pictures += [f"{name}:{n}: a torn picture, or a line above {MAX_COLUMNS} columns" for n in torn(text)]
        if name in public:
            bare += [f"{name}:{n}: no comment: {what}" for n, what, covered in Header(text).found if not covered]
        if path.suffix == ".def":
            rows += [f"{name}:{n}: no comment: {row}" for n, row in bare_rows(text)]
    for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/**/*.md")]) + [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        parts += [f"{name}:{n}: {count} words, the most is {MAX_WORDS}" for n, count in long_parts(text)]
        if text.count("\n") > MAX_LINES.get(name, float("inf")):
            pages.append(f"{name}: {text.count(chr(10))} lines, the most is {MAX_LINES[name]}")
    failed = 0
    for rule, found in rules.items():
        allowed = MAX_SIX if found is six else 0
        if len(found) > allowed:
            failed += 1
            print("\n".join(found))
        print(f"{len(found)} {rule}, {allowed} allowed")
    print(f"{len(rules) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
