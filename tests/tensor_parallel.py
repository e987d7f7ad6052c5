#!/usr/bin/env python3
"""gpt train --plan tpN: the losses of one process, resuming with other numbers of ranks, and rejected plans.

tests/tensor_parallel.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import subprocess

from programs import RECOMPUTE, check, finish, refused, run, workplace, works

TRAIN = ["gpt", "train", "--model", "gpt:2x24x6", "--context", 12, "--batch", 2, "--lr", 0.01, "--warmup", 2, "--dropout", 0.1, "--set", "gradient_clipping=0.5"]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def near(a, b, tolerance):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b))


with workplace(100) as (d, text):

    def train(name, *args):
        return run(*TRAIN, "--text", text, "--out", d / name, "--json", *args)

    r = train("one", "--steps", 20, "--accumulate", 2)
    check("one process", r.returncode == 0, r.stderr)
    full = json.loads(r.stdout)
    for name, args in {"tp2": ["--ranks", 2, "--accumulate", 2], "tp3": ["--ranks", 3, "--accumulate", 2, *RECOMPUTE, "--set", "tensor_parallel.overlap_chunks=3"], "dp2+tp2": ["--ranks", 4, "--set", "tensor_parallel.sequence_parallel=true"],
                       "pp2+tp2+zero1": ["--ranks", 4, "--accumulate", 2, "--set", "tensor_parallel.sequence_parallel=true", "--set", "tensor_parallel.overlap_chunks=2", "--set", "pipeline.schedule=zb-h1"]}.items():
        args = [*args, "--plan", name]
        r = train(name, "--steps", 20, *args)
        check(f"{name} runs", r.returncode == 0, r.stderr)
        mine, norms = losses(d / name)
        expected, expected_norms = losses(d / "one")
        check(f"{name} has the losses of one process", near(mine, expected, 1e-5) and near(norms, expected_norms, 1e-4), f"{mine}\n{expected}\n{norms}\n{expected_norms}")
        last = json.loads(r.stdout)
        check(f"{name}: figures", abs(last["val_loss"] - full["val_loss"]) < 1e-5 * full["val_loss"] and last["parameters"] == full["parameters"], r.stdout)

    # A run that is resumed with another number of slices ends like one process, and its checkpoints are ordinary ones.
    r = train("moving", "--steps", 10, "--save-every", 4, "--ranks", 4, "--plan", "tp2")
    check("first part", r.returncode == 0, r.stderr)
    train("still", "--steps", 10, "--accumulate", 2)
    for name, args in {"on three": ["--ranks", 3, "--plan", "tp3", "--accumulate", 2], "on one": ["--accumulate", 2]}.items():
        copy = d / name
        subprocess.run(["cp", "-r", d / "moving", copy], check=True)
        r = train(name, "--steps", 20, "--resume", *args)
        check(f"{name}: resumes", r.returncode == 0, r.stderr)
        still = d / f"still {name}"
        subprocess.run(["cp", "-r", d / "still", still], check=True)
        r = train(still.name, "--steps", 20, "--resume", "--accumulate", 2)
        check(f"{name}: as one process does", near(losses(copy)[0], losses(still)[0], 1e-5), f"{losses(copy)[0]}\n{losses(still)[0]}")
    works("its model is an ordinary one", ["gpt", "logits", d / "moving", "--ids", "116,104,101", "--to", d / "logits.safetensors"])

    base = [*TRAIN, "--text", text, "--steps", 1]
    refused("ranks that it does not divide", [*base, "--ranks", 4, "--plan", "tp3"], "it is for 3 ranks, and there are 4", code=2)
    refused("no ranks", [*base, "--plan", "tp2"], "it is for 2 ranks, and there is 1", code=2)
    refused("heads", [*base, "--ranks", 4, "--plan", "tp4"], "tp4 does not divide the 6 attention heads")
    refused("a context that does not divide", [*map(lambda word: 13 if word == 12 else word, base), "--ranks", 3, "--plan", "tp3", "--set", "tensor_parallel.sequence_parallel=true"], "13")
    refused("chunks alone", [*base, "--set", "tensor_parallel.overlap_chunks=2"], "add tpN to the plan")
    refused("sequence alone", [*base, "--set", "tensor_parallel.sequence_parallel=true"], "add tpN to the plan")
    refused("with ZeRO 2", [*base, "--ranks", 4, "--plan", "tp2+zero2"], "zero2", code=2)

finish()
