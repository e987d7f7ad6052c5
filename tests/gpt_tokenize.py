#!/usr/bin/env python3
"""gpt tokenize, and training, evaluation and fine-tuning on the token file that it writes.

tests/gpt_tokenize.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import pathlib
import tempfile

from programs import check, finish, refused, result, run, saved

TOKENIZER = pathlib.Path(__file__).resolve().parent / "golden/tokenizer"

with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text, tokens, words = d / "text.txt", d / "a.tokens", d / "words.tokens"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    known = TOKENIZER / "gpt2"
    r = run("gpt", "tokenize", text, "--to", tokens, "--json")
    check("tokenizes bytes", r.returncode == 0 and result(r) == {"tokens": 9000, "bytes": 9000, "vocabulary": 256, "tokenizer": "bytes"}, r.stdout + r.stderr)
    r = run("gpt", "tokenize", text, "--to", words, "--tokenizer", known, "--json")
    check("tokenizes words", r.returncode == 0 and 0 < result(r)["tokens"] < 9000, r.stdout + r.stderr)
    check("leaves nothing else", sorted(f.name for f in d.iterdir()) == ["a.tokens", "text.txt", "words.tokens"], str(list(d.iterdir())))

    train = ["gpt", "train", "--model", "gpt:1x16x2", "--context", 16, "--batch", 4, "--steps", 4, "--eval-every", 2, "--json"]
    for name, source, made, more in (("bytes", text, tokens, []), ("words", text, words, ["--tokenizer", known])):
        a = run(*train, "--text", source, *more, "--out", d / f"{name}-text")
        b = run(*train, "--text", made, *more, "--out", d / f"{name}-tokens")
        check(f"{name}: the same training", a.returncode == b.returncode == 0 and saved(d / f"{name}-text") == saved(d / f"{name}-tokens"), a.stderr + b.stderr)
        losses = [run("gpt", "eval", d / f"{name}-text", "--text", some, "--json") for some in (source, made)]
        check(f"{name}: the same evaluation", [r.returncode for r in losses] == [0, 0] and result(losses[0]) == result(losses[1]), "".join(r.stdout + r.stderr for r in losses))
    r = run(*train, "--text", tokens, "--ranks", 2)
    check("two ranks", r.returncode == 0, r.stderr)
    r = run(*train, "--text", text, "--export", d / "base")
    finetune = ["gpt", "finetune", "--model_name_or_path", d / "base", "--do_train", "--do_eval", "--max_steps", 2, "--json"]
    a, b = (run(*finetune, "--train_file", some) for some in (text, tokens))
    check("the same finetuning", a.returncode == b.returncode == 0 and result(a)["eval_loss"] == result(b)["eval_loss"], a.stderr + b.stderr)

    refused("another tokenizer", [*train, "--text", words], "words.tokens: expected tokens of the tokenizer (bytes; 256 tokens), got those of (")
    refused("tokens of tokens", ["gpt", "tokenize", tokens, "--to", d / "b"], "expected a text, got a .tokens file")
    refused("onto itself", ["gpt", "tokenize", text, "--to", text], "--to to name another file")
    refused("no such text", ["gpt", "tokenize", d / "none", "--to", d / "b"], "none")
    refused("an empty text", ["gpt", "tokenize", "/dev/null", "--to", d / "b"], "expected a regular file")
    (d / "cut.tokens").write_bytes(tokens.read_bytes()[:-9])
    refused("a file that was cut", [*train, "--text", d / "cut.tokens"], "cut.tokens: the end record is missing or wrong", "(is the file truncated?)")
    refused("no target", ["gpt", "tokenize", text], "--to is required", code=2)
finish()
