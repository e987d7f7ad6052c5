#!/usr/bin/env python3
"""gpt train --tensor-parallel: the losses of one process, resuming with other numbers of slices, and what is refused.

    tests/tensor_parallel.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import os
import pathlib
import subprocess
import tempfile

from programs import check, finish, refused, run

TRAIN = ["gpt", "train", "--layers", 2, "--width", 24, "--heads", 6, "--context", 12, "--batch", 2, "--lr", 0.01, "--warmup", 2, "--dropout", 0.1, "--clip", 0.5]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def near(a, b, tolerance):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b))


with tempfile.TemporaryDirectory() as folder:
    os.environ["TMPDIR"] = folder
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 100)

    def train(name, *args):
        return run(*TRAIN, "--text", text, "--out", d / name, "--json", *args)

    r = train("one", "--steps", 20, "--accumulate", 2)
    check("one process", r.returncode == 0, r.stderr)
    whole = json.loads(r.stdout)
    for name, args in {"tp2": ["--ranks", 2, "--tensor-parallel", 2, "--accumulate", 2], "tp3": ["--ranks", 3, "--tensor-parallel", 3, "--accumulate", 2, "--checkpoint-blocks"],
                       "dp2tp2": ["--ranks", 4, "--tensor-parallel", 2, "--sequence-parallel"]}.items():
        r = train(name, "--steps", 20, *args)
        check(f"{name} runs", r.returncode == 0, r.stderr)
        mine, norms = losses(d / name)
        expected, expected_norms = losses(d / "one")
        check(f"{name} has the losses of one process", near(mine, expected, 1e-5) and near(norms, expected_norms, 1e-4), f"{mine}\n{expected}\n{norms}\n{expected_norms}")
        last = json.loads(r.stdout)
        check(f"{name}: figures", abs(last["val_loss"] - whole["val_loss"]) < 1e-5 * whole["val_loss"] and last["parameters"] == whole["parameters"], r.stdout)

    # A run goes on with other slices, and ends where one process does; what it saves is an ordinary model.
    r = train("moving", "--steps", 10, "--save-every", 4, "--ranks", 4, "--tensor-parallel", 2)
    check("first part", r.returncode == 0, r.stderr)
    saved = d / "moving" / "checkpoint.safetensors"
    r = train("still", "--steps", 10, "--accumulate", 2)
    check("whole and sliced checkpoints are of one size", saved.stat().st_size == (d / "still" / "checkpoint.safetensors").stat().st_size, r.stderr)
    for name, args in {"on three": ["--ranks", 3, "--tensor-parallel", 3, "--accumulate", 2], "on one": ["--accumulate", 2]}.items():
        copy = d / name
        subprocess.run(["cp", "-r", d / "moving", copy], check=True)
        r = train(name, "--steps", 20, "--resume", *args)
        check(f"{name}: resumes", r.returncode == 0, r.stderr)
        still = d / f"still {name}"
        subprocess.run(["cp", "-r", d / "still", still], check=True)
        r = train(still.name, "--steps", 20, "--resume", "--accumulate", 2)
        check(f"{name}: as one process does", near(losses(copy)[0], losses(still)[0], 1e-5), f"{losses(copy)[0]}\n{losses(still)[0]}")
    r = run("gpt", "sample", d / "moving", "--prompt", "the", "--tokens", 3)
    check("its model is an ordinary one", r.returncode == 0, r.stderr)

    base = [*TRAIN, "--text", text, "--steps", 1]
    refused("ranks that it does not divide", [*base, "--ranks", 4, "--tensor-parallel", 3], "--tensor-parallel 3 expected a number of ranks that it divides, got 4")
    refused("no ranks", [*base, "--tensor-parallel", 2], "--tensor-parallel 2 expected a number of ranks that it divides, got 1")
    refused("heads", [*base, "--ranks", 4, "--tensor-parallel", 4], "expected heads that the 4 ranks of group tp", "divide, got 6")
    refused("a context that does not divide", [*map(lambda word: 13 if word == 12 else word, base), "--ranks", 3, "--tensor-parallel", 3, "--sequence-parallel"], "--sequence-parallel expected a --context that 3 ranks divide, got 13")
    refused("sequence alone", [*base, "--sequence-parallel"], "--tensor-parallel", code=2)
    for option, words in {"--zero": ["--zero", 1], "--precision f16": ["--precision", "f16"], "--optimizer": ["--optimizer", "onebit-adam"], "--trace-bits": ["--trace-bits", d / "bits"],
                          "--parallel": ["--parallel", "none"], "--pipeline": ["--pipeline", 2]}.items():
        refused(f"with {option}", [*base, "--ranks", 2, "--tensor-parallel", 2, *words], option, code=2 if option == "--pipeline" else 1)

finish()
