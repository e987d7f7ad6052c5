#!/usr/bin/env python3
"""`lockstep config`: the typical files of tests/golden/configs, its output, rejected files, and docs/config.md, which
it generates.

config_command.py BUILD
"""
import base64
import json
import pathlib
import tempfile

from programs import check, finish, refused, run, works

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "tests/golden/configs"


r = run("lockstep", "config", "--reference")
page = (ROOT / "docs/config.md").read_text()
difference = next((f"the page has:    {a}\nthe program has: {b}" for a, b in zip(page.split("\n"), r.stdout.split("\n")) if a != b), "")
check("docs/config.md is current (lockstep config --reference > docs/config.md)", r.returncode == 0 and r.stdout == page, difference)

for name, ranks, lines, warnings in (
        ("tutorial", 1, ('zero_optimization.stage  2  (from file)', 'zero_optimization.offload_optimizer.device  "cpu"  (from file)', "gradient_clipping  1.0  (default)"),
         ("stage3_max_act_size: accepted, and has no effect", "offload_param: ignored below stage 3")),
        ("nvme", 8, ("train_batch_size  64  (inferred)", "aio.queue_depth  32  (from file)", "scheduler.params.cycle_max_lr  0.001  (from file)"), ()),
        ("old", 4, ("train_batch_size  16  (inferred)", "pipeline.stages  1  (default here; DeepSpeed: auto)", "optimizer.params.momentum  0.95  (default)"),
         ("bfloat16: a deprecated name of bf16", "contiguous_gradients: accepted, and has no effect"))):
    r = run("lockstep", "config", CONFIGS / f"{name}.config", "--ranks", ranks)
    printed = [" ".join(line.split()) for line in r.stdout.splitlines()]
    missing = [line for line in lines if " ".join(line.split()) not in printed]
    check(name, r.returncode == 0 and not missing and all(w in r.stderr for w in warnings) and bool(r.stderr) == bool(warnings), f"missing {missing}\n{r.stdout}{r.stderr}")
    again = json.loads(run("lockstep", "config", CONFIGS / f"{name}.config", "--ranks", ranks, "--json").stdout)
    check(f"{name} --json, read again", json.loads(run("lockstep", "config", json.dumps(again), "--ranks", ranks, "--json").stdout) == again)

r = run("lockstep", "config", CONFIGS / "tutorial.config", "--ranks", 4)
check("batch sizes that do not fit", r.returncode == 2 and not r.stdout and "= 64; write one of\n" in r.stderr and "\n    \"train_batch_size\": 64\n" in r.stderr and "tutorial.config: " in r.stderr, r.stderr)
refused("all problems at once", ["lockstep", "config", '{"optimzer": {}, "zero_optimization": {"stage": 7}}'], "2 problems\n", "did you mean optimizer?", "from 0 to 3, got 7", code=2)
works("base64", ["lockstep", "config", base64.urlsafe_b64encode(b'{"train_batch_size": 3}').decode(), "--ranks", 3], lambda r: "(inferred)" in r.stdout)
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "broken.json"
    file.write_text('{\n  "seed": 1\n  "fp16": {}\n}\n')
    refused("a syntax error has a line", ["lockstep", "config", file], f"{file}:3:", code=2)
    refused("a folder", ["lockstep", "config", folder], "got a folder", code=2)
for args, text in ((["/nowhere/ds.json"], "/nowhere/ds.json"), ([], "expected a configuration file, got none"), (["{}", "--ranks", "0"], "from 1 to")):
    refused(f"refused: {args}", ["lockstep", "config", *args], text, code=2)

works("docs/environment.md is current (lockstep env --variables > docs/environment.md)", ["lockstep", "env", "--variables"], lambda r: r.stdout == (ROOT / "docs/environment.md").read_text())

finish()
