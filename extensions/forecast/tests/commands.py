#!/usr/bin/env python3
"""`lockstep plan`, `simulate` and `roofline` as a user runs them.

commands.py BUILD          ends with "N passed, N failed"
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, check, finish, refused, result, run  # noqa: E402

CONFIGS = ROOT / "tests/golden/configs"


def plan(*args):
    return run("lockstep", "plan", *args, "--flops", "1e12", "--bandwidth", "1e10", "--memory-bandwidth", "1e10")


r = run("lockstep", "simulate", "ring", "--ranks", 1024, "--bytes", "100MB", "--latency", "5us", "--bandwidth", "25GB/s", "--json")
expected = 2 * 1023 * 5e-6 + 2 * 1023 / 1024 * 100e6 / 25e9
check("lockstep simulate", r.returncode == 0 and abs(result(r)["asked"]["seconds"] / expected - 1) < 0.01 and abs(result(r)["asked"]["formula_seconds"] / expected - 1) < 1e-9, r.stderr)
r = run("lockstep", "simulate", "--ranks", 64, "--bytes", "64KiB", "--hosts", "8x8", "--host-latency", "1us", "--host-bandwidth", "800Gbit/s")
check("lockstep simulate compares", r.returncode == 0 and all(a in r.stdout for a in ("65536 bytes", "hierarchical", "within a host 1.00 us, 100 GB/s")), r.stdout + r.stderr)
for ranks in (65536, 1048576):  # seconds; less than 1 GiB
    r = subprocess.run(["sh", "-c", 'ulimit -v 1048576; exec "$@"', "sh", str(APPS / "lockstep"), "simulate", "ring", "--ranks", str(ranks), "--json"], capture_output=True, text=True, timeout=60)
    check(f"lockstep simulate, {ranks} ranks", r.returncode == 0 and abs(result(r)["asked"]["seconds"] / (2 * (ranks - 1) * 5e-6 + 2 * (ranks - 1) / ranks * 100e6 / 25e9) - 1) < 0.01, r.stderr)
r = run("lockstep", "simulate", "--collective", "all_gather", "--ranks", 100000)
check("lockstep simulate leaves out what is too large", r.returncode == 0 and "\nring " in r.stdout and "too many transfers" in r.stdout and [line.split()[1] for line in r.stdout.splitlines() if line.startswith("tree")] == ["-"], r.stdout + r.stderr)
refused("lockstep simulate of what is too large", ["lockstep", "simulate", "tree", "--collective", "all_gather", "--ranks", 100000], "needs 80 GB to simulate", code=2)
r = run("lockstep", "roofline", "--model", "llama:2x64x4", "--kv-heads", 2, "--inner", 96, "--vocab", 300, "--context", 32, "--batch", 2, "--precision", "f32", "--device", "a100", "--json")
check("lockstep roofline", r.returncode == 0 and result(r)["tokens"] == 64 and result(r)["parameters"] == 2 * 300 * 64 + 2 * (64 * 128 + 64 * 64 + 3 * 64 * 96 + 2 * 64) + 64 and 0 < result(r)["mfu"] < 0.1, r.stdout + r.stderr)
r = run("lockstep", "roofline")
check("lockstep roofline prints a table", r.returncode == 0 and "124439808 parameters" in r.stdout and "\nMFU " in r.stdout and "measured on one H200, 27 November 2026" in r.stdout, r.stdout + r.stderr)
refused("a card that is unknown", ["lockstep", "roofline", "--device", "h300"], "expected a card of h200, h100, a100", code=2)
refused("heads of keys that do not divide", ["lockstep", "roofline", "--model", "llama:2x64x4", "--kv-heads", 3], "--kv-heads expected a divisor of 4", code=2)
refused("a unit that is none", ["lockstep", "simulate", "ring", "--ranks", 4, "--bytes", "5q"], "--bytes expected a number", "MiB", code=2)
refused("no ranks", ["lockstep", "simulate", "ring", "--ranks", 0], "--ranks", code=2)

r = plan("--config", CONFIGS / "nvme.config", "--model", "gpt:12x768x12", "--ranks", 8, "--units")
words = ("124439808 parameters", "legal on 8 ranks; stage 3, bf16, AdamW (assumed: the file names none)", "formula ", "with padding, most ", "offloaded ", "Activations come on top", "3.0", "unit 0 ", "rank 7 ")
check("plan", r.returncode == 0 and all(w in r.stdout for w in words), r.stdout + r.stderr)
r = plan("--config", CONFIGS / "tutorial.config", "--model", "gpt:2x64x2", "--ranks", 1, "--vocab", 100, "--context", 32, "--json")
p = json.loads(r.stdout)
elements = 100 * 64 + 32 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
check("plan --json", r.returncode == 0 and p["elements"] == elements and p["optimizer"] == "AdamW" and p["stages"][0]["bytes"][0]["optimizer_elsewhere"] == 12 * elements and p["stages"][0]["traffic"]["gradients"] == 0
      and abs(p["seconds"]["compute"] - 3 * (2 * (2 * 12 * 64 * 64 + 100 * 64) + 2 * 2 * 33 * 64) * 16 * 32 / 1e12) < 1e-9, r.stdout + r.stderr)
r = run("lockstep", "plan", "--config", '{"train_batch_size": 2}', "--model", "gpt:1x8x1", "--ranks", 2, "--vocab", 10, "--context", 4)
check("plan with speeds measured here", r.returncode == 0 and "FLOP/s a rank" in r.stdout, r.stdout + r.stderr)
for args, text, code in ((("--config", CONFIGS / "tutorial.config", "--model", "gpt:2x64x2", "--ranks", 3), "= 48; write one of", 2), (("--config", "{}", "--model", "gpt:2x64", "--ranks", 3), "gpt:LAYERSxWIDTHxHEADS", 2),
                         *((("--config", "{}", "--model", bad, "--ranks", 1), "gpt:LAYERSxWIDTHxHEADS", 2) for bad in ("bert:1x2x2", "gpt:0x2x2", "gpt:1x2x", "gpt:99999999999999999999x1x1")),
                         (("--config", "{}", "--model", "gpt:2x64x2"), "expected --ranks N, or --plan", 2),
                         (("--model", "gpt:2x64x2", "--ranks", 2), "expected --config FILE", 2), (("--ranks", 2), "-- PROGRAM", 2), (("--model", "gpt:2x64x2", "--ranks", 2, "--", "true"), "got both", 2),
                         (("--ranks", 2, "--", "true"), "did not describe what it trains", 2), (("--ranks", 2, "--context", 8, "--", "true"), "--context is of a model by its name", 2), (("--ranks", 2, "--", "sh", "-c", "echo oh no; exit 3"), "oh no", 2)):
    r = plan(*args)
    check(f"plan refuses {args}", r.returncode == code and text in r.stderr, f"exit {r.returncode}: {r.stdout}{r.stderr}")

finish()
