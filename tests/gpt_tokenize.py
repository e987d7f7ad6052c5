#!/usr/bin/env python3
"""gpt tokenize, and training and evaluation on the token file that it writes.

tests/gpt_tokenize.py BUILD_FOLDER          ends with "N passed, N failed"
"""

from programs import check, finish, refused, result, run, saved, workplace, works

with workplace() as (d, text):
    tokens = d / "a.tokens"
    works("tokenizes bytes", ["gpt", "tokenize", text, "--to", tokens, "--json"], lambda r: result(r) == {"tokens": 9000, "bytes": 9000, "vocabulary": 256, "tokenizer": "bytes"})
    check("leaves nothing else", sorted(f.name for f in d.iterdir()) == ["a.tokens", "text.txt"], str(list(d.iterdir())))

    train = ["gpt", "train", "--model", "gpt:1x16x2", "--context", 16, "--batch", 4, "--steps", 4, "--eval-every", 2, "--json"]
    a, b = (run(*train, "--text", some, "--out", d / name) for some, name in ((text, "of-text"), (tokens, "of-tokens")))
    check("the same training", a.returncode == b.returncode == 0 and saved(d / "of-text") == saved(d / "of-tokens"), a.stderr + b.stderr)
    losses = [run("gpt", "eval", d / "of-text", "--text", some, "--json") for some in (text, tokens)]
    check("the same evaluation", [r.returncode for r in losses] == [0, 0] and result(losses[0]) == result(losses[1]), "".join(r.stdout + r.stderr for r in losses))
    works("two ranks", [*train, "--text", tokens, "--ranks", 2])
    refused("tokens of tokens", ["gpt", "tokenize", tokens, "--to", d / "b"], "expected the text itself, got a .tokens file")
    refused("onto itself", ["gpt", "tokenize", text, "--to", text], "--to to name another file")
    refused("no such text", ["gpt", "tokenize", d / "none", "--to", d / "b"], "none")
    refused("an empty text", ["gpt", "tokenize", "/dev/null", "--to", d / "b"], "expected a regular file")
    (d / "cut.tokens").write_bytes(tokens.read_bytes()[:-9])
    refused("a file that was cut", [*train, "--text", d / "cut.tokens"], "cut.tokens: the end record is missing or wrong", "(is the file truncated?)")
    refused("no target", ["gpt", "tokenize", text], "--to is required", code=2)
finish()
