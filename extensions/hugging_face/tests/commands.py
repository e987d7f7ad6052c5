#!/usr/bin/env python3
"""Tokenizers and exports of gpt: what a run's folder keeps of them, token files, and what is refused.

commands.py BUILD          ends with "N passed, N failed"
"""
import json
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import check, finish, offers, refused, result, run, saved  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    tiny = ["--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]

    # A run's folder contains its tokenizer.
    (d / "no_tokens").mkdir()
    tokens = d / "tokens"
    shutil.copytree(GOLDEN / "tokenizer", tokens)
    for what, folder_ in (("missing", d / "gone"), ("empty", d / "no_tokens")):
        refused(f"a tokenizer that is {what}", ["gpt", "train", *tiny, "--steps", 1, "--tokenizer", folder_], "[tokenizer]", str(folder_))
    words = ["gpt", "train", *tiny, "--tokenizer", tokens, "--out", d / "words"]
    r = run(*words, "--steps", 2, "--export", d / "words_exported")
    check("train on tokens", r.returncode == 0, r.stderr)
    tokens.rename(d / "moved_tokens")
    for name, args in (("sample", ["sample", d / "words", "--prompt", "the quick", "--tokens", 3]), ("eval", ["eval", d / "words", "--text", text]), ("resume", [*words[1:], "--steps", 3, "--resume"]), ("sample of an export", ["sample", d / "words_exported", "--prompt", "the", "--tokens", 2])):
        r = run("gpt", *args)
        check(f"{name}, with the tokenizer moved away", r.returncode == 0 and (name == "resume") == (f"note: --tokenizer {tokens} contains no tokenizer" in r.stderr), r.stderr)
    sparse = offers("lockstep", "sparse")
    # Generation ends at the eos of the folder given by --init. The run keeps that folder's files, and the other files
    # that Transformers reads.
    exported = d / "words_exported"
    (exported / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "model_max_length": 10**30}))
    (exported / "chat_template.jinja").write_text("{{ messages }}")
    ids = run("gpt", "sample", exported, "--ids", "5,6", "--tokens", 6, "--greedy").stdout.strip().split(",")
    (exported / "generation_config.json").write_text(json.dumps({"eos_token_id": [int(ids[2]), 10**6]}))
    ended = ids[:ids.index(ids[2]) + 1]
    r = run("gpt", "train", "--init", exported, "--text", text, "--context", 16, "--batch", 1, "--steps", 1, "--lr", 0, "--out", d / "tuned", "--export", d / "dense", *(["--set", 'sparse_attention={"mode": "fixed"}'] if sparse else []))
    check("an export leaves sparse attention out, and says so", r.returncode == 0 and ("cannot store sparse_attention" in r.stderr) == sparse, r.stderr)
    kept = ["tokenizer_config.json", "chat_template.jinja"]
    check("an export keeps what stands beside the tokenizer", all((d / "dense" / name).read_bytes() == (exported / name).read_bytes() for name in kept), r.stderr)
    check("and its ends", json.loads((d / "dense/generation_config.json").read_text())["eos_token_id"] == [int(ids[2]), 10**6], r.stderr)
    for folder_ in (exported, d / "tuned"):
        r = run("gpt", "sample", folder_, "--ids", "5,6", "--tokens", 6, "--greedy")
        check(f"{folder_.name}: ids end with eos", r.stdout.strip().split(",") == ended, f"{r.stdout} {ids}: {r.stderr}")
    (exported / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(10**4))}))
    r = run("gpt", "sample", exported, "--prompt", "the quick")
    check("a text ends before eos", r.returncode == 0 and r.stdout == "the quick\n", r.stdout + r.stderr)
    stored = d / "words/tokenizer/merges.txt"
    stored.write_text(stored.read_text() + "\n")
    for name, args in (("sample", ["sample", d / "words", "--prompt", "the quick"]), ("eval", ["eval", d / "words", "--text", text]), ("resume", [*words[1:], "--steps", 4, "--resume"])):
        refused(f"{name} of a run whose tokenizer was changed", ["gpt", *args], "tokenizer", "merges.txt")
    r = run("gpt", "sample", d / "words", "--ids", "5,6", "--tokens", 2)
    check("ids need no tokenizer", r.returncode == 0, r.stderr)
    shutil.rmtree(d / "words/tokenizer")
    refused("a run that has lost its tokenizer", ["gpt", "sample", d / "words", "--prompt", "a"], "[tokenizer]", "words/tokenizer")

    # Training, evaluation and fine-tuning on token files of such a tokenizer.
    tokens, words = d / "a.tokens", d / "words.tokens"
    known = GOLDEN / "tokenizer/gpt2"
    r = run("gpt", "tokenize", text, "--to", words, "--tokenizer", known, "--json")
    check("tokenizes words", r.returncode == 0 and 0 < result(r)["tokens"] < 9000, r.stdout + r.stderr)
    train = ["gpt", "train", "--model", "gpt:1x16x2", "--context", 16, "--batch", 4, "--steps", 4, "--eval-every", 2, "--json"]
    a = run(*train, "--text", text, "--tokenizer", known, "--out", d / "words-text")
    b = run(*train, "--text", words, "--tokenizer", known, "--out", d / "words-tokens")
    check("words: the same training", a.returncode == b.returncode == 0 and saved(d / "words-text") == saved(d / "words-tokens"), a.stderr + b.stderr)
    losses = [run("gpt", "eval", d / "words-text", "--text", some, "--json") for some in (text, words)]
    check("words: the same evaluation", [r.returncode for r in losses] == [0, 0] and result(losses[0]) == result(losses[1]), "".join(r.stdout + r.stderr for r in losses))
    refused("another tokenizer", [*train, "--text", words], "words.tokens: expected tokens of the tokenizer (bytes; 256 tokens), got those of (")
    if offers("gpt", "finetune"):
        r = run("gpt", "tokenize", text, "--to", tokens)
        check("tokenizes bytes", r.returncode == 0, r.stdout + r.stderr)
        r = run(*train, "--text", text, "--export", d / "base")
        finetune = ["gpt", "finetune", "--model_name_or_path", d / "base", "--do_train", "--do_eval", "--max_steps", 2, "--json"]
        a, b = (run(*finetune, "--train_file", some) for some in (text, tokens))
        check("the same finetuning", a.returncode == b.returncode == 0 and result(a)["eval_loss"] == result(b)["eval_loss"], a.stderr + b.stderr)
finish()
