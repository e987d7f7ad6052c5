#!/usr/bin/env python3
"""Keeps the commands in the pages true: in ``` blocks of README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md, in
backticks, and in indented lines.

A command begins with `$ ` or with the name of one of our programs. It must exist, with its options, as docs/options.md lists them.
Commands in blocks run as well, page by page, from top to bottom, in a folder that has what the pages speak of: texts, a run in runs/1,
a Llama in llama, configuration files. They must end with 0. Where a page shows no output, trainings take two steps, and small --text,
--model, --context and --batch are added if it gives none.

Lines that follow a command with `$ ` are its output: each must be printed, in this order, up to blanks; other lines may be between.
"..." stands for anything, in a line or as one. In what trains, a number of seconds may be any, and other numbers may differ by 0.1 %,
as processors round differently. A command whose output begins with "error:" must fail with this error; the page may break its line.

Commands with a placeholder (PROGRAM, FILE, <...>, ...) do not run, nor do those of a block that begins with "```sh not run". Behind
these words the page says why.

Usage: commands.py BUILD. Ends with "N passed, N failed".
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "scripts"))
import options_page  # noqa: E402

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("extensions/**/*.md")])
OPTIONS = {title: {option.replace("_", "-") for option in options} for title, options in options_page.names(options_page.PAGE.read_text()).items()}
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:build/apps/|build/examples/|build/)?(lockstep|gpt|mlp|cnn|vit|vae|speech) (?![a-z]+:)[^─]*$")
PLACEHOLDER = re.compile(r"(^|[ =,])(?!LICENSE)[A-Z][A-Z]+(?![\w:])|\.\.\.|<")
SMALL = {"--text": "corpus.txt", "--steps": "2", "--model": "gpt:4x32x4", "--context": "32", "--batch": "2"}
TRAINS = re.compile(r"lockstep (run|verify)\b|\b(gpt|mlp|cnn) train\b|\bvit\b|build/examples/")


class Block:
    """A ``` block with commands of ours: [(line of the page, command, lines of output)]."""

    def __init__(self, page, line, words, text):
        self.page, self.runs, self.commands = page, not words.partition(" ")[2].startswith("not run"), []
        lines = iter(enumerate(text.split("\n")[:-1], line + 1))
        for number, printed in lines:
            if printed.startswith("$ ") or COMMAND.match(printed):
                command = printed.removeprefix("$ ")
                while command.endswith("\\"):
                    command = command[:-1] + next(lines)[1].lstrip()
                self.commands.append((number, command, []))
            elif self.commands and re.search(r"^\$ ", text, re.M):
                self.commands[-1][2].append(printed)


def blocks(page):
    text = page.read_text()
    for found in re.finditer(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S):
        block = Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        if block.commands and not found[1].startswith(("cpp", "json")):
            yield block


def split(command):
    """Its words, without a comment and without folders before the names of programs."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # an apostrophe
        words = command.split()
    return [re.sub(r"^build/(apps/|examples/)?", "", word) for word in words]


def unknown(words):
    """What in a command does not exist."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if not words or words[0] not in ("vit", *options_page.PROGRAMS):
        return None
    title, at = (words[0], 1) if words[0] != "vit" else ("mlp train", 1)
    while at < len(words) and f"{title} {words[at]}" in OPTIONS:
        title, at = f"{title} {words[at]}", at + 1
    if any(name.startswith(title + " ") for name in OPTIONS) and at < len(words) and not words[at].startswith("-"):
        return f"{title} has no command {words[at]}"
    for k, word in enumerate(words[at:], at):
        if word == "--":
            return unknown(words[k + 1:])
        option = word.partition("=")[0].replace("_", "-")
        if option.startswith("--") and option not in OPTIONS[title]:
            return f"{title} has no option {option}"
    return None


def shortened(command):
    """The command, with options that make a training short."""
    command = re.sub(r" +#.*", "", command)
    words = split(command)
    if words[:2] in (["lockstep", "plan"], ["lockstep", "simulate"]):
        return command
    program = words[words.index("--") + 1:] if "--" in words else words
    command = re.sub("--model (gpt|llama):[0-9x]+", r"--model \1:4x32x4", re.sub("--steps [0-9]+", "--steps 2", command))
    if words[:2] == ["lockstep", "verify"] and "--steps" not in words:
        command = command.replace("verify", "verify --steps 2", 1)
    if program[:2] == ["gpt", "finetune"]:
        return command + " --max_steps 2 --block_size 16"
    missing = {"gpt train": SMALL, "gpt eval": {"--text": "corpus.txt"}}.get(" ".join(program[:2]), {})
    if program[0] == "vit" or program[:2] in (["mlp", "train"], ["cnn", "train"]):
        missing = {"--steps": "2"}
    given = [*program, *(["--steps"] if words[:2] == ["lockstep", "verify"] else []), *(["--model"] if "--init" in program else [])]
    return command + "".join(f" {option} {value}" for option, value in missing.items() if option not in given)


def pattern(line, trains):
    """(regular expression of a line of output, the numbers that its groups may be near)."""
    text = re.escape(" ".join(line.split())).replace(r"\ ", " ").replace(r"\.\.\.", ".*")
    if not trains:
        return re.compile(text + "$"), []
    text = re.sub(r"(?<![\w.])\d+\\\.\d+ s\b", r"[\\d.]+ s", text)
    number = re.compile(r"(?<![\w.])\d+\\\.\d+(?![\w.])")
    return re.compile(number.sub(r"([-+\\d.e]+)", text) + "$"), [float(n.replace("\\", "")) for n in number.findall(text)]


def missing_output(expected, said, trains):
    """The first line of the page that is not in what a program said."""
    if expected[:1] and expected[0].startswith("error:"):
        return None if " ".join(" ".join(expected).split()) in " ".join(said.split()) else expected[0]
    lines = iter(" ".join(line.split()) for line in said.split("\n"))
    for line in expected:
        if not line.strip() or line.strip() == "...":
            continue
        wanted, numbers = pattern(line, trains)
        for got in lines:
            match = wanted.match(got)
            if match and all(abs(float(a) - b) <= 1e-3 * abs(b) for a, b in zip(match.groups(), numbers)):
                break
        else:
            return line
    return None


def made_folder(at):
    """The folder that commands run in. Pages whose commands do not write to runs/1 get the run in made/1 there."""
    (at / "build").mkdir()
    (at / "docs/images").mkdir(parents=True)
    for name in ("apps", "examples"):
        (at / "build" / name).symlink_to(BUILD / name)
    (at / "build/vit").symlink_to(BUILD / "examples/vit")
    for name in ("corpus.txt", "notes.txt", "text.txt", "book.txt", "books.txt", "LICENSE"):
        (at / name).write_text((ROOT / "LICENSE").read_text() * (8 if name == "corpus.txt" else 1))
    config = {"train_micro_batch_size_per_gpu": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    (at / "ds.json").write_text(json.dumps(config))
    config["train_micro_batch_size_per_gpu"], config["optimizer"]["params"]["lr"] = 2, 1e-3
    (at / "ds_config.json").write_text(json.dumps(config))
    (at / "zero3.json").write_text(json.dumps(config | {"zero_optimization": {"stage": 3}}))
    (at / "adamw.json").write_text('{"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}}\n')
    (at / "inference.json").write_text('{"dtype": "fp32"}')
    shutil.copytree(ROOT / "extensions/hugging_face/tests/golden/tokenizer/gpt2", at / "gpt2")
    for command in ("gpt train --text corpus.txt --model gpt:2x32x2 --context 32 --batch 2 --steps 2 --out made/1",
                    "gpt train --text corpus.txt --model llama:2x32x4 --context 32 --batch 2 --steps 1 --export llama"):
        code, said = run(command, at)
        if code:
            sys.exit(f"{command}: {said}")
    shutil.copy(at / "llama/config.json", at / "config.json")
    shutil.copytree(at / "llama", at / "Llama-3.2-1B")


def run(command, folder):
    """(exit code, what it printed)"""
    env = {"OMP_WAIT_POLICY": "passive", **os.environ, "PATH": f"{BUILD}/apps:{BUILD}/examples:{os.environ['PATH']}"}
    done = subprocess.run(["timeout", "200", "bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout


def check_page(page, folder):
    """[(line, problem or None)] of a page's commands."""
    results = []
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True, symlinks=True)
        if not re.search(r"--out runs/1\b", page.read_text()):
            shutil.copytree(f"{folder}/made", f"{copy}/runs")
        for block in blocks(page):
            for line, command, output in block.commands:
                problem = unknown(split(command))
                if not problem and block.runs and not PLACEHOLDER.search(re.sub(" +#.*", "", command)):
                    command = command if output else shortened(command)
                    code, said = run(command, copy)
                    fails = output[:1] and output[0].startswith("error:")
                    absent = missing_output(output, said, TRAINS.search(command))
                    if bool(fails) != (code != 0):
                        problem = f"{command}\nended with {code}: {said[-2000:]}"
                    elif absent:
                        problem = f"{command}\ndoes not print\n  {absent}\nbut\n{said[-6000:]}"
                results.append((line, problem))
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.M | re.S)
    for found in re.finditer(r"`([^`\n]+(?:\n[^`\n]+)?)`|^    (.*)", text, re.M):
        command = found[1] or found[2]
        if COMMAND.match(command):
            results.append((text.count("\n", 0, found.start()) + 1, unknown(split(command))))
    return results


def main():
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        made_folder(pathlib.Path(folder))
        pages = [page for page in PAGES if page != options_page.PAGE and (len(sys.argv) < 3 or page.name in sys.argv)]
        for page, results in zip(pages, pool.map(lambda page: check_page(page, folder), pages)):
            for line, problem in results:
                passed, failed = passed + (problem is None), failed + (problem is not None)
                if problem:
                    print(f"{page.relative_to(ROOT)}:{line}: {problem}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
