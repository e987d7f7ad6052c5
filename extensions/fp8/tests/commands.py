#!/usr/bin/env python3
"""`gpt train --precision fp8`, and the keys of the section.

commands.py BUILD          ends with "N passed, N failed"
"""
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import check, finish, refused, result, run  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    text = pathlib.Path(folder) / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    tiny = ["--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]
    low = run("gpt", "train", *tiny, "--steps", 20, "--precision", "fp8")
    check("train in fp8", low.returncode == 0 and result(low)["loss"] < 6 and " Linears (e4m3, gradients e5m2)" in low.stderr, low.stdout + low.stderr)
    refused("a word that is none", ["gpt", "train", *tiny, "--precision", "f8"], "f8 not in {auto, f32, tf32, bf16, f16, fp8}", code=2)
    refused("both", ["gpt", "train", *tiny, "--precision", "bf16", "--set", "fp8.enabled=true"], "--precision bf16 contradicts the configuration, where fp8.enabled is true", code=2)
finish()
