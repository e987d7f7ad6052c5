#!/usr/bin/env python3
"""Curves of a Trainer (`--set summary.folder=DIR`) as TensorBoard's own reader sees them, against the run's metrics.jsonl.

    tensorboard_curves.py BUILD_FOLDER          ends with "N passed, N failed"

Skipped (exit code 77) without tensorboard; $PYTHON names an interpreter that has it. The other kinds of summaries are compared in
extensions/summary/tests/writer_test.cpp.
"""
import json
import pathlib
import struct
import sys

from checks import need

need("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from programs import check, finish, works, workplace  # noqa: E402

ALL = {"scalars": 0, "tensors": 0}  # keeps every point, where TensorBoard shows a sample of long curves


def single(value):
    """The number as TensorBoard keeps it, in f32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def logged(run):
    """{tag: [(step, value), ...]} of the lines of steps in metrics.jsonl."""
    curves = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if "step" in record and key != "step" and isinstance(value, (int, float)):
                tag = key.replace("test_", "test/", 1) if key.startswith("test_") else f"train/{key}"
                curves.setdefault(tag, []).append((record["step"], single(value)))
    return curves


def read(folder):
    """(curves as logged() gives them, texts by tag) of a folder with event files."""
    events = EventAccumulator(str(folder), size_guidance=ALL).Reload()
    curves = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    texts = {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
    return curves, texts


with workplace() as (d, _):
    digits = ["mlp", "train", "--samples", 64, "--batch", 8, "--json"]
    for ranks, steps in ((1, 16), (2, 8)):
        run, folder = d / f"{ranks}/run", d / f"{ranks}/curves"
        works(f"{ranks} ranks: trains", [*digits, "--epochs", 2, "--ranks", ranks, "--out", run, "--set", f"summary.folder={folder}"])
        (curves, texts), expected = read(folder), logged(run)
        check(f"{ranks} ranks: curves are those of metrics.jsonl", curves == expected, f"{curves}\n{expected}")
        check(f"{ranks} ranks: a point for each step", [step for step, _ in curves["train/loss"]] == list(range(1, steps + 1)), curves)
        check(f"{ranks} ranks: points of evaluations", [step for step, _ in curves["test/accuracy"]] == [steps // 2, steps], curves)
        config = texts["config/text_summary"][0].removeprefix("```json\n").removesuffix("\n```")
        check(f"{ranks} ranks: the configuration is a text", json.loads(config)["train_micro_batch_size_per_gpu"] == 8, texts)

    # A run that is resumed from an older checkpoint repeats steps, and TensorBoard hides the earlier points of those.
    run, folder = d / "resumed/run", d / "resumed/curves"
    digits += ["--epochs", 4, "--out", run, "--save-every", 8, "--set", f"summary.folder={folder}"]
    works("the first 12 steps", [*digits, "--steps", 12])
    (run / "checkpoints/latest").write_text("global_step8")
    works("steps 9 to 16", [*digits, "--steps", 16, "--resume"])
    curves = read(folder)[0]
    check("a resumed run has each step once", [step for step, _ in curves["train/loss"]] == list(range(1, 17)) and curves == logged(run), f"{curves}\n{logged(run)}")
finish()
