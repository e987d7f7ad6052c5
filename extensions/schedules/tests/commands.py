#!/usr/bin/env python3
"""`lockstep schedule` as a user runs it.

commands.py BUILD          ends with "N passed, N failed"
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, check, finish, refused, run  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    r = run("lockstep", "schedule", "ring_all_reduce", "--ranks", 4, "--svg", d / "ring.svg")
    check("lockstep schedule", r.returncode == 0 and "(0+((1+2)+3))" in r.stdout and (d / "ring.svg").read_text().endswith("</svg>\n"), r.stdout + r.stderr)
    r = run("lockstep", "schedule", "1f1b", "--stages", 4, "--micro-batches", 8)
    check("lockstep schedule of a pipeline", r.returncode == 0 and "= 27.27 %" in r.stdout and "activations kept  4 3 2 1" in r.stdout and "rank 3   .  .  .  F0 B0 B0 F1" in r.stdout, r.stdout + r.stderr)
    r = run("lockstep", "schedule", "zb-h1", "--stages", 8, "--micro-batches", 64, "--costs", "1,1,0.5,0.1", "--svg", d / "zb.svg")
    check("lockstep schedule draws a pipeline", r.returncode == 0 and "without latency" in r.stdout and (d / "zb.svg").read_text().endswith("</svg>\n"), r.stdout + r.stderr)
    refused("a pipeline without sizes", ["lockstep", "schedule", "1f1b", "--stages", 4], "needs --stages and --micro-batches", code=2)
    refused("a misspelt pipeline", ["lockstep", "schedule", "1f1", "--stages", 4, "--micro-batches", 4], "did you mean 1f1b?", code=2)
    refused("a pipeline with options of collectives", ["lockstep", "schedule", "1f1b", "--stages", 4, "--micro-batches", 8, "--ranks", 4], "--ranks is for collectives", code=2)
    refused("a collective without ranks", ["lockstep", "schedule", "ring"], "ring needs --ranks", code=2)
    refused("micro-batches that do not divide", ["lockstep", "schedule", "interleaved", "--stages", 4, "--micro-batches", 6], "use 4 or 8, or 1f1b", code=2)
    r = run("lockstep", "schedule", "direct", "--collective", "reduce", "--ranks", 6, "--root", 2, "--mean")
    check("lockstep schedule prints", r.returncode == 0 and "4[2] +> own[1]" in r.stdout and "mean(((0+1)+(2+3))+(4+5))" in r.stdout and "checked           right" in r.stdout, r.stdout + r.stderr)
    refused("misspelt algorithm", ["lockstep", "schedule", "rnig", "--ranks", 4], "did you mean ring?", code=2)
    refused("no such schedule", ["lockstep", "schedule", "tree_all_to_all", "--ranks", 4], "tree has no schedule for all_to_all; expected one of direct, hierarchical, server", code=2)
    refused("two collectives", ["lockstep", "schedule", "ring_all_gather", "--ranks", 4, "--collective", "reduce"], "two collectives", code=2)
    refused("hosts that do not add up", ["lockstep", "schedule", "hierarchical", "--ranks", 4, "--hosts", "2,1"], "--hosts 2,1 has 3 ranks, --ranks has 4", code=2)
    refused("a root that is not there", ["lockstep", "schedule", "ring", "--ranks", 4, "--root", 4], "root from 0 to 3, got 4", code=2)
    refused("a picture of too many ranks", ["lockstep", "schedule", "ring", "--ranks", 32, "--svg", d / "x.svg"], "16 ranks or fewer", code=2)

    r = run("lockstep", "schedule", "ring-attention", "--ranks", 4)
    check("lockstep schedule ring-attention", r.returncode == 0 and "contiguous        busy 57" in r.stdout and "zigzag            busy 100.00 %" in r.stdout, r.stdout + r.stderr)
    r = run("lockstep", "schedule", "ring-attention", "--ranks", 4, "--svg", d / "ring.svg")
    check("and its picture", r.returncode == 0 and (d / "ring.svg").read_text().endswith("</svg>\n"), r.stdout + r.stderr)
    refused("its options", ["lockstep", "schedule", "ring-attention", "--ranks", 4, "--mean"], "--mean is for collectives", code=2)

    with open("/dev/full", "w") as nowhere:
        r = subprocess.run([str(APPS / "lockstep"), "schedule", "ring", "--ranks", "4"], stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=120)
    check("lockstep schedule > /dev/full", r.returncode == 1 and "standard output cannot be written (No space left on device)" in r.stderr, f"{r.returncode}: {r.stderr}")
finish()
