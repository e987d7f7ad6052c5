#!/usr/bin/env python3
"""gpt train --config: the same bits in every stage and number of ranks, resuming, and rejected files.

tests/gpt_config.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json

from programs import APPS, check, finish, offers, refused, run, workplace, works


with workplace() as (d, text):
    model = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--dropout", 0.1, "--eval-every", 10, "--json"]

    def config(name, **keys):
        path = d / f"{name}.json"
        path.write_text("// of a test\n" + json.dumps(keys))
        return path

    def train(name, plan, file, *more, launcher=False):
        """plan: (ranks, accumulation). Returns what --trace-bits wrote."""
        ranks, accumulation = plan
        trace = d / f"{name}.trace"
        ours = [*model, "--config", file, "--accumulate", accumulation, "--trace-bits", trace, *more]
        r = run("lockstep", "run", "-n", ranks, "--", APPS / "gpt", *ours[1:]) if launcher else run(*ours, "--ranks", ranks)
        check(f"{name} ends well", r.returncode == 0, r.stdout + r.stderr)
        return trace.read_text() if trace.exists() else "none"

    # A file that only has the batch size: optimizer and schedule are gpt's own, with the bits of gpt without a
    # configuration.
    plain = works("gpt without a configuration", [*model, "--batch", 2, "--steps", 5, "--warmup", 2, "--accumulate", 4, "--trace-bits", d / "plain.trace"])
    bare = config("bare", train_micro_batch_size_per_gpu=2)
    for stage, plan in ((0, (1, 4)), (1, (2, 2)), (2, (4, 1)), (3, (2, 2))):
        got = train(f"bare{stage}", plan, bare, "--steps", 5, "--warmup", 2, "--plan", f"zero{stage}")
        check(f"stage {stage} on {plan[0]} ranks: the bits of gpt without a configuration", got == (d / "plain.trace").read_text(), got)

    # A complete file, with ranks in processes.
    full = dict(train_batch_size=8, train_micro_batch_size_per_gpu=2, optimizer={"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                scheduler={"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 3, "total_num_steps": 12}}, gradient_clipping=0.5, seed=7)
    for precision in ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}):
        which = next(iter(precision), "f32")
        traces = {}
        for stage, plan in ((0, (1, 4)), (3, (4, 1)), (1, (2, 2)), (2, (4, 1))):
            file = config(f"{which}{stage}", zero_optimization={"stage": stage, "stage3_param_persistence_threshold": 500}, **full, **precision)
            traces[stage] = train(f"{which} zero{stage} {plan[0]}x{plan[1]}", plan, file, "--steps", 6, launcher=which == "f32" and stage == 3)
        for name, stage, plan, section in (("pp2", 0, (2, 4), {"stages": 2}), ("dp2+pp2+zero1", 1, (4, 2), {"stages": 2, "partition": "uniform", "schedule": "gpipe"})):
            file = config(f"{which}{name}", zero_optimization={"stage": stage}, pipeline=section, **full, **precision)
            traces[name] = train(f"{which} {name}", plan, file, "--steps", 6)
        check(f"{which}: the same bits in every stage, with a pipeline too", len(set(traces.values())) == 1 and traces[0].count("\n") == 6, str(traces))

    # Values that the file leaves to the program.
    if offers("lockstep", "checkpoint", "export", "--hugging-face"):  # of the extension that fills them in
        said = config("said", **{**full, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 3, "total_num_steps": 6}}})
        left = config("left", **{**full, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "optimizer": {"type": "AdamW", "params": {**full["optimizer"]["params"], "lr": "auto"}},
                                 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}}})
        check("auto is filled in", train("said", (1, 4), said, "--steps", 6) == train("left", (1, 4), left, "--steps", 6, "--lr", 3e-3, "--warmup", 3, "--batch", 2))

    # Resumes with another stage and number of ranks.
    end = train("whole", (1, 4), d / "f320.json", "--steps", 8, "--out", d / "whole").splitlines()
    train("first half", (4, 1), d / "f323.json", "--steps", 5, "--out", d / "half")
    rest = train("second half", (2, 2), d / "f321.json", "--steps", 8, "--out", d / "half", "--resume").splitlines()
    check("a resumed run is bit-identical to an uninterrupted one", len(rest) == 3 and rest == end[5:], "\n".join(rest))
    train("first half, in a pipeline", (4, 2), d / "f32dp2+pp2+zero1.json", "--steps", 5, "--out", d / "half-pp")
    rest = train("second half, without", (2, 2), d / "f323.json", "--steps", 8, "--out", d / "half-pp", "--resume").splitlines()
    check("a pipeline's checkpoint goes on in one process each", len(rest) == 3 and rest == end[5:], "\n".join(rest))
    metrics = [json.loads(line) for line in (d / "half/metrics.jsonl").read_text().splitlines()]
    check("metrics go on", [m["step"] for m in metrics] == list(range(1, 9)) and all("grad_norm" in m and m["lr"] >= 0 for m in metrics), str(metrics))
    if offers("gpt", "sample"):
        works("sample from that run", ["gpt", "sample", d / "half", "--tokens", 5, "--json"])
    if offers("lockstep", "checkpoint"):
        works("its checkpoint is whole", ["lockstep", "checkpoint", "verify", d / "half/checkpoints"])

    works("verify with a config", ["lockstep", "verify", "--plans", "ddp:1x4,zero1:2x2,zero2:4x1,zero3@overlap=off:2x2", "--", APPS / "gpt", *model[1:-1], "--config", bare, "--steps", 3, "--warmup", 1], lambda r: "identical" in r.stdout)

    file = d / "f323.json"
    for flags, *parts in ((["--lr", 1], "--lr contradicts", "optimizer.type is AdamW"), (["--warmup", 1], "--warmup contradicts", "scheduler.type is WarmupDecayLR"),
                          (["--batch", 4], "- ds train_micro_batch_size_per_gpu=2 vs args --batch=4"), (["--plan", "zero1", "--ranks", 1], "ZeRO stage 1 contradicts", "zero_optimization.stage is 3"),
                          (["--seed", 1, "--batch", 3], "- ds train_micro_batch_size_per_gpu=2 vs args --batch=3\n- ds seed=7 vs args --seed=1\nThe easiest method is"), (["--precision", "f16", "--config", d / "bf160.json"], "--precision f16 contradicts", "bf16.enabled"),
                          (["--accumulate", 3], "train_batch_size"), (["--plan", "pp2", "--config", d / "f32dp2+pp2+zero1.json", "--set", "pipeline.stages=3"], "stages 2 contradicts", "pipeline.stages is 3")):
        refused(f"contradiction {flags}", [*model, *(["--config", file] if "--config" not in flags else []), *flags, "--steps", 1], *parts, code=2)
    refused("ZeRO 3 in a pipeline", [*model, "--config", file, "--plan", "pp2", "--ranks", 2, "--steps", 1], "pp2+zero3 is invalid: ", "The nearest plan that works: pp2+zero1", code=2)
    works("the same said twice", [*model, "--config", file, "--batch", 2, "--plan", "zero3", "--ranks", 1, "--steps", 1, "--seed", 7])
    refused("a misspelt key", [*model, "--config", config("typo", train_batch_size=4, optimzer={}), "--steps", 1], "optimzer", "optimizer", code=2)
    refused("no such file", [*model, "--config", d / "none.json", "--steps", 1], "none.json", code=2)
    refused("no such key", [*model, "--set", "zero_optimization", "--steps", 1], "--set zero_optimization: expected KEY=VALUE", code=2)
    works("resume without a checkpoint begins", [*model, "--config", bare, "--steps", 1, "--out", d / "nothing", "--resume"], lambda r: "nothing holds no checkpoint, so --resume begins at step 0" in r.stderr)

finish()
