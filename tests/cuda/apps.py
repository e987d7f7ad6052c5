#!/usr/bin/env python3
"""The programs on a CUDA device: losses equal to the CPU's, ranks, checkpoints that move between devices, and the error
when there is no device.

tests/cuda/apps.py BUILD_FOLDER [simulated]       ends with "N passed, N failed"
"""
import functools
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import programs
from programs import APPS, RECOMPUTE, check, finish, offers, result, saved

simulated = "simulated" in sys.argv[2:]
run = functools.partial(programs.run, timeout=600)  # a simulated device is slow


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def close(a, b, tolerance=1e-4):
    return len(a) == len(b) > 0 and all(abs(x - y) < tolerance for x, y in zip(a, b))


def check_replayed(what, name, there, off):
    """there and off: two ranks that trained 5 steps into name and, without graphs, into name-off."""
    a, b = d / name, d / f"{name}-off"
    said = (not simulated or "1 shape recorded, 4 of 5 steps replayed" in there.stdout) and "none: they are turned off" in off.stdout
    check(f"gpt: {what}: steps that are replayed end with the bits of those that are not", saved(a) == saved(b) != [] and losses(a) == losses(b) and said,
          there.stdout + off.stdout + off.stderr)


with tempfile.TemporaryDirectory() as folder:
    os.environ["TMPDIR"] = folder
    d = pathlib.Path(folder)

    r = run("lockstep", "env")
    check("env shows the driver", r.returncode == 0 and "cuda: runtime" in r.stdout, r.stdout + r.stderr)
    if "no device" in r.stdout:
        r = run("mlp", "train", "--device", "cuda", "--steps", 1)
        check("without a device the reason is given", r.returncode == 1 and "there is no cuda device" in r.stderr, r.stderr)
        finish()

    if simulated:
        for env, reason in (({"LOCKSTEP_FAKE_CUDA_NO_DRIVER": "1"}, "no NVIDIA driver is installed"), ({"LOCKSTEP_FAKE_CUDA_DRIVER": "12040"}, "the NVIDIA driver is for CUDA 12.4 and this build needs 13."),
                            ({"LOCKSTEP_FAKE_CUDA_DEVICES": "0"}, "the driver sees no device")):
            r = run("lockstep", "env", **env)
            check(f"env says: {reason}", r.returncode == 0 and reason in r.stdout, r.stdout + r.stderr)
            r = run("mlp", "train", "--device", "cuda", "--steps", 1, **env)
            check(f"train says: {reason}", r.returncode == 1 and reason in r.stderr, r.stderr)
            r = run("mlp", "train", "--samples", 64, "--batch", 16, "--steps", 1, "--json", **env)
            check(f"the CPU works: {reason}", r.returncode == 0, r.stderr)
    r = run("mlp", "train", "--device", "cuda:63", "--steps", 1)
    check("no such device", r.returncode == 1 and "expected one of the devices cuda:0" in r.stderr, r.stderr)
    r = run("mlp", "train", "--device", "gpu", "--steps", 1)
    check("no such type", r.returncode == 2 and "expected cpu, cpu:N, cuda or cuda:N" in r.stderr, r.stderr)

    tiny = ["--samples", 64, "--batch", 16, "--steps", 3, "--precision", "f32", "--json"]
    for app in ("mlp", "cnn"):
        here, there = (run(app, "train", *tiny, "--device", device, "--out", d / f"{app}-{device}") for device in ("cpu", "cuda"))
        both = here.returncode == there.returncode == 0
        check(f"{app} trains as on the CPU", both and abs(result(here)["test_loss"] - result(there)["test_loss"]) < 1e-4, here.stderr + there.stderr + there.stdout)
        check(f"{app} counts the device's memory", both and result(there)["peak_memory_mib"] > 0.1, there.stdout)
        if both:  # loads each one's checkpoint on the other
            crossed = [run(app, "eval", d / f"{app}-{a}", "--samples", 64, "--device", b, "--json") for a, b in (("cpu", "cuda"), ("cuda", "cpu"))]
            check(f"{app}: checkpoints change devices", all(r.returncode == 0 for r in crossed) and all(abs(result(r)["test_loss"] - result(here)["test_loss"]) < 1e-4 for r in crossed),
                  "".join(r.stderr for r in crossed))

    devices = "cpu", "cuda"
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    by_device = ["--text", text, "--model", "gpt:1x32x2", "--context", 16, "--batch", 2, "--warmup", 2, "--validation", 0.1, "--eval-every", 100]
    tiny = [*by_device, "--precision", "f32", "--json"]
    for name, more in (("plain", []), ("dropout", ["--dropout", 0.1]), ("recompute", RECOMPUTE), ("accumulate", ["--accumulate", 2])):
        here, there = (run("gpt", "train", *tiny, *more, "--steps", 5, "--device", device, "--out", d / f"gpt-{name}-{device}") for device in ("cpu", "cuda"))
        both = here.returncode == there.returncode == 0
        check(f"gpt, {name}: five losses as on the CPU", both and close(losses(d / f"gpt-{name}-cpu"), losses(d / f"gpt-{name}-cuda")), here.stderr + there.stderr)
    here, there = (run("gpt", "train", *tiny, "--steps", 5, "--device", device, "--parallel", "dp", LOCKSTEP_CPU_DEVICES="2") for device in devices)
    check("gpt: all devices of one process", here.returncode == there.returncode == 0 and abs(result(here)["val_loss"] - result(there)["val_loss"]) < 1e-4, here.stderr + there.stderr)
    for precision in ("tf32", "bf16", "f16"):
        r = run("gpt", "train", *by_device, "--json", "--precision", precision, "--steps", 5, "--device", "cuda", "--out", d / f"gpt-{precision}")
        check(f"gpt in {precision}", r.returncode == 0 and close(losses(d / f"gpt-{precision}"), losses(d / "gpt-plain-cpu"), 0.05), r.stderr)
    r = run("gpt", "train", *by_device, "--steps", 5, "--device", "cuda", "--out", d / "gpt-default")
    check("gpt: bf16 is the default, and the first line says so", r.returncode == 0 and r.stdout.startswith("precision bf16 (the default on this card; --precision f32 chooses f32)\n")
          and losses(d / "gpt-default") == losses(d / "gpt-bf16"), r.stdout + r.stderr)
    r = run("gpt", "train", *by_device, "--precision", "f32", "--steps", 5, "--device", "cuda", "--out", d / "gpt-default", "--resume")
    check("gpt: a run goes on in f32, and says that it was in bf16", r.returncode == 0 and 'the precision was "bf16" and is now "f32"' in r.stderr and "default" not in r.stdout, r.stdout + r.stderr)
    if simulated:
        r = run("gpt", "train", *by_device, "--steps", 5, "--device", "cuda", "--out", d / "gpt-old", LOCKSTEP_FAKE_CUDA_CAPABILITY="75")
        check("gpt: f32 is the default where a device has no bf16", r.returncode == 0 and "precision" not in r.stdout and close(losses(d / "gpt-old"), losses(d / "gpt-plain-cpu")), r.stdout + r.stderr)
    r = run("gpt", "train", *by_device, "--json", "--precision", "bf16", "--steps", 5, "--device", "cuda", "--parallel", "dp")
    check("gpt: all devices of one process, in bf16", r.returncode == 0 and result(r)["val_loss"] < 6, r.stdout + r.stderr)
    full = run("gpt", "train", *tiny, "--steps", 4, "--device", "cuda", "--dropout", 0.1, "--out", d / "whole")
    part = run("gpt", "train", *tiny, "--steps", 4, "--device", "cuda", "--dropout", 0.1, "--save-every", 2, "--out", d / "part")
    check("gpt: two runs end with the same bits", saved(d / "whole") == saved(d / "part") != [], full.stderr + part.stderr)
    off = run("gpt", "train", *tiny, "--steps", 4, "--device", "cuda", "--dropout", 0.1, "--no-graph", "--out", d / "off")
    check("gpt: steps that are replayed end with the bits of those that are not", saved(d / "whole") == saved(d / "off") != [] and losses(d / "whole") == losses(d / "off")
          and result(off)["graphs"] == "none: they are turned off" and result(full)["graphs"] == "1 shape recorded, 3 of 4 steps replayed", full.stdout + off.stdout + off.stderr)
    if offers("gpt", "sample"):
        r = run("gpt", "sample", d / "gpt-plain-cuda", "--tokens", 5, "--greedy", "--device", "cuda", "--json")
        r2 = run("gpt", "sample", d / "gpt-plain-cuda", "--tokens", 5, "--greedy", "--json")
        check("gpt samples the same text", r.returncode == 0 and result(r)["text"] == result(r2)["text"], r.stderr + r.stdout)
    if offers("gpt", "train", "--export"):
        r = run("gpt", "train", *tiny, "--steps", 2, "--device", "cuda", "--export", d / "hf")
        r2 = run("gpt", "eval", d / "hf", "--text", text, "--device", "cuda", "--json")
        check("gpt: Hugging Face folders", r.returncode == 0 and r2.returncode == 0, r.stderr + r2.stderr)

    one = run("gpt", "train", *tiny, "--steps", 3, "--accumulate", 2, "--device", "cuda", "--out", d / "one")
    two = run("lockstep", "run", "-n", 2, "--", APPS / "gpt", "train", *tiny, "--steps", 3, "--device", "cuda", "--out", d / "two")
    check("gpt: two ranks as one with twice the micro-batches", one.returncode == two.returncode == 0 and close(losses(d / "one"), losses(d / "two")), one.stderr + two.stderr)
    check("gpt: with a device each no rank goes through the host", not simulated or "through the host" not in two.stderr, two.stderr)

    def ranks(device, name, *more, **env):
        return run("lockstep", "run", "-n", 2, "--", APPS / "gpt", "train", *tiny, "--steps", 5, "--device", device, "--out", d / name, *more, **env)

    here, there = ranks("cpu", "ranks-cpu"), ranks("cuda", "ranks-cuda")
    check("gpt: two ranks on devices: losses of two ranks on the CPU", here.returncode == there.returncode == 0 and close(losses(d / "ranks-cpu"), losses(d / "ranks-cuda")), here.stderr + there.stderr)
    check_replayed("two ranks", "ranks-cuda", there, ranks("cuda", "ranks-cuda-off", "--no-graph"))
    for stage, *more in ((1,), (2,), (3,), (3, "--offload", "cpu")):
        name = f"zero{stage}{'-offload' if more else ''}"
        zero = ranks("cuda", name, "--plan", f"zero{stage}", *more)
        check(f"gpt: {name} on devices", zero.returncode == 0 and close(losses(d / name), losses(d / "ranks-cpu")), zero.stderr)
    config = d / "zero3.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": True},
                                  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}))
    def engine(device, name, steps, *more):
        # the configuration file has the other options
        model = ["--text", text, "--model", "gpt:1x32x2", "--context", 16]
        return run("lockstep", "run", "-n", 2, "--", APPS / "gpt", "train", *model, "--steps", steps, "--device", device, "--out", d / name, "--config", config, *more)

    here, there = engine("cpu", "engine-cpu", 5), engine("cuda", "engine-cuda", 5)
    check("gpt: the engine on devices, with checkpoints", here.returncode == there.returncode == 0 and close(losses(d / "engine-cpu"), losses(d / "engine-cuda"), 1e-2), here.stderr + there.stderr)
    r = engine("cuda", "engine-cpu", 7, "--resume")
    check("gpt: the engine goes on, on devices, from a checkpoint of the CPU", r.returncode == 0 and len(losses(d / "engine-cpu")) == 7, r.stderr)
    experts = "--experts", "2,every=1"
    for plan, *more in (("pp2",), ("tp2",), ("cp2",), ("cp2", "--set", "context_parallel.attention=ulysses"), ("pp2", "--set", "pipeline.schedule=zb-h1", "--accumulate", 2), ("dp2+ep2+zero1", *experts), ("pp2", *experts)):
        name = "-".join(["plan", plan, *map(str, more)])
        here, there = (ranks(device, f"{name}-{device}", "--plan", plan, *more) for device in devices)
        check(f"gpt: {name} on devices", here.returncode == there.returncode == 0 and close(losses(d / f"{name}-cpu"), losses(d / f"{name}-cuda")), here.stderr + there.stderr)
        if plan == "cp2" or (plan in ("pp2", "tp2") and not more):
            check_replayed(name, f"{name}-cuda", there, ranks("cuda", f"{name}-cuda-off", "--plan", plan, *more, "--no-graph"))
    if simulated:
        shared = ranks("cuda", "ranks-shared", LOCKSTEP_FAKE_CUDA_DEVICES="1")
        check("gpt: two ranks on one device go through the host, and say so once", shared.returncode == 0 and shared.stderr.count("share the device at 0000:01:00.0") == 1 and close(losses(d / "ranks-cpu"), losses(d / "ranks-shared")),
              shared.stderr)
        exact = ranks("cuda", "ranks-exact", LOCKSTEP_NCCL_EXACT="1")
        same = saved(d / "ranks-exact") == saved(d / "ranks-shared") != []
        check("gpt: exact sums by NCCL are bit-identical to sums on the host", exact.returncode == 0 and same, exact.stderr)
        for name, what, more in (("eager", "zero unit", ["--no-graph"]), ("replayed", "replay of 1 collective)", [])):
            broken = ranks("cuda", "ranks-broken-" + name, *more, LOCKSTEP_FAKE_NCCL_FAIL="18")
            check(f"gpt: an error of NCCL ends the job with the call, {name}", broken.returncode != 0 and "[nccl] call " in broken.stderr and what in broken.stderr and "failed in group world: internal error" in broken.stderr, broken.stderr)
    threads = run("gpt", "train", *tiny, "--steps", 3, "--ranks", 2, "--device", "cuda", "--out", d / "threads")
    check("gpt: ranks as threads", threads.returncode == 0 and close(losses(d / "one"), losses(d / "threads")), threads.stderr)

finish()
