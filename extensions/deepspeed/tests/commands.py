#!/usr/bin/env python3
"""The programs with DeepSpeed's reports and 1-bit optimizers.

commands.py BUILD          ends with "N passed, N failed"
"""
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, check, finish, refused, result, run, saved  # noqa: E402


def write_chain(path, words=200, length=50_000):
    """Writes the text of a Markov chain, in which each word has four possible successors."""
    chance = random.Random(7)
    names = ["".join(chance.choice("aeiou" if i % 2 else "bdfgklmnprst") for i in range(chance.randint(3, 6))) for _ in range(words)]
    follow = [chance.sample(range(words), 4) for _ in range(words)]
    at, said = 0, []
    for _ in range(length):
        said.append(names[at])
        at = chance.choices(follow[at], (0.4, 0.3, 0.2, 0.1))[0]
    path.write_text(" ".join(said))


with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    ours = ["gpt", "train", "--text", text, "--model", "gpt:4x24x3", "--context", 24, "--batch", 1, "--warmup", 1, "--steps", 1, "--json", "--set", "flops_profiler.enabled=true"]
    # The plan that the error message suggests can train.
    r = run(*ours, "--ranks", 2, "--plan", "pp2")
    found = re.search(r"\[plan\] \S+ (?:is invalid: |does not work with ).*The nearest plan that works: (\S+)", r.stderr)
    check("the profiler of a pipeline is refused, once, with a suggestion", r.returncode in (1, 2) and found and r.stderr.count("[plan] ") == 1 and "[schedule]" not in r.stderr, f"exit {r.returncode}: {r.stderr}")
    if found:
        r = run(*ours, "--ranks", 2, "--plan", found[1])
        check(f"and {found[1]} trains", r.returncode == 0, r.stderr)

    tiny = ["--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]
    write_chain(d / "chain.txt")
    chain = ["--text", d / "chain.txt", *(1000 if before == "--eval-every" else word for before, word in zip(tiny[1:], tiny[2:])), "--ranks", 2, "--steps", 1000]
    exact = run("gpt", "train", *chain)
    check("adamw learns the chain", exact.returncode == 0 and result(exact)["val_loss"] < 2.2, exact.stdout + exact.stderr)
    for optimizer in ("onebit-adam", "onebit-lamb", "zero-one-adam", "onebit-sgd"):
        args = ["gpt", "train", *tiny, "--optimizer", f"{optimizer},freeze_step=6", "--accumulate", 2, "--out", d / optimizer]
        r = run(*args, "--steps", 12, "--ranks", 2, "--trace-bits", d / "bits")
        check(f"{optimizer} on 2 ranks", r.returncode == 0 and result(r)["compressed_steps"] >= 6 and 0 < result(r)["bytes_of_compressed_step"] * 16 < result(r)["bytes_of_exact_step"], r.stdout + r.stderr)
        r = run("lockstep", "run", "-n", 2, "--", APPS / args[0], *args[1:], "--steps", 14, "--resume", LOCKSTEP_TIMEOUT="120")
        check(f"{optimizer} goes on", r.returncode == 0 and '"steps": 14' in r.stdout, r.stdout + r.stderr)
    for precision in ("f32", "bf16", "f16"):
        r = run("gpt", "train", *chain, "--optimizer", "onebit-adam,freeze_step=200", "--precision", precision)
        check(f"onebit-adam in {precision}: within 2 % of AdamW's loss, with a fifteenth of the bytes", r.returncode == 0 and result(r)["val_loss"] < 1.02 * result(exact)["val_loss"]
              and 0 < result(r)["bytes_of_compressed_step"] * 15 <= result(r)["bytes_of_exact_step"], r.stdout + r.stderr + exact.stdout)
    # The 1-bit optimizers, by DeepSpeed's names in a configuration file.
    config = d / "onebit.json"
    for name, params in (("OneBitAdam", {"freeze_step": 6}), ("OneBitLamb", {"freeze_step": 6}), ("ZeroOneAdam", {"var_freeze_step": 6}), ("OneBitSGD", {"freeze_step": 6})):
        config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "optimizer": {"type": name, "params": {"lr": 0.001, **params}}, "fp16": {"enabled": name == "OneBitAdam"}}))
        args = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--dropout", 0.1, "--json", "--config", config]
        r = run(*args, "--steps", 12, "--ranks", 2, "--out", d / name)
        least = 8 if name == "OneBitAdam" else 16  # its uncompressed steps send 16 bits per number
        check(f"{name} by --config", r.returncode == 0 and result(r)["compressed_steps"] >= 6 and 0 < result(r)["bytes_of_compressed_step"] * least < result(r)["bytes_of_exact_step"], r.stdout + r.stderr)
        shutil.copytree(d / name, d / f"{name}2")
        more = [run(*args, "--steps", 16, "--ranks", 2, "--out", d / out, "--resume") for out in (name, f"{name}2")]
        check(f"{name} goes on", all(r.returncode == 0 and result(r)["steps"] == 16 for r in more) and saved(d / name) == saved(d / f"{name}2"), more[0].stdout + more[0].stderr)
    r = run("mlp", "train", "--epochs", 10, "--samples", 600, "--json", "--ranks", 2, "--optimizer", "onebit-adam")
    check("mlp with onebit-adam", r.returncode == 0 and result(r)["test_accuracy"] > 0.7 and result(r)["exact_steps"] > 0 < result(r)["compressed_steps"], r.stdout + r.stderr)
    refused("onebit without ranks", ["gpt", "train", "--text", text, "--optimizer", "onebit-adam"], "lockstep run -n N", code=2)
    refused("onebit with zero", ["gpt", "train", "--text", text, "--optimizer", "onebit-adam", "--ranks", 2, "--plan", "zero1"], "needs stage 0")
    refused("freeze_step of AdamW", ["gpt", "train", "--text", text, "--optimizer", "adamw,freeze_step=3"], "is for 1-bit optimizers", code=2)
    refused("with a 1-bit optimizer", ["gpt", "train", *tiny, "--steps", 1, "--ranks", 2, "--plan", "tp2", "--optimizer", "onebit-adam"], "OneBitAdam exchanges gradients itself and needs the whole model on every rank")
finish()
