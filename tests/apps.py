#!/usr/bin/env python3
"""The programs as a user runs them: help, wrong options, bad files, resuming with the same bits, Ctrl-C.

tests/apps.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from leftovers import left_behind, processes_with
from programs import APPS, RECOMPUTE, began, changed, check, disturbed, finish, offers, refused, result, run, saved, workplace, works


with workplace() as (d, text):
    os.environ["LOCKSTEP_TIMEOUT"] = "120"
    tiny = ["--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]

    for app in ("gpt", "mlp", "cnn"):
        works(f"{app} --help", [app, "--help"], lambda r: "train" in r.stdout and "eval" in r.stdout)
        works(f"{app} train --help", [app, "train", "--help"], lambda r: "--seed" in r.stdout)

    if "no cuda in this build" in run("lockstep", "env").stdout:
        refused("no cuda in this build", ["mlp", "train", "--device", "cuda"], "[--device] this build has no cuda backend", "-Dcuda=enabled")
    refused("no such device", ["mlp", "train", "--device", "gpu"], "expected cpu, cpu:N, cuda or cuda:N", code=2)
    options = re.findall(r"^ +-[^ ]*", run("gpt", "train", "--help").stdout, re.M)
    check("gpt train has few options", 10 < len(options) <= 35, f"{len(options)}: {options}")
    refused("misspelt option", ["gpt", "train", "--steps", 3, "--contxet", 3], "--contxet", "did you mean --context?", code=2)
    refused("misspelt command", ["mlp", "trian"], "did you mean train?", code=2)
    refused("no command", ["mlp"], "--help", code=2)
    refused("word for a number", ["gpt", "train", "--steps", "many"], "--steps", code=2)
    refused("missing text", ["gpt", "train", "--text", d / "none.txt"], "none.txt")
    refused("short text", ["gpt", "train", "--text", text, "--context", 5000], "too few")
    if offers("gpt", "train", "--init"):
        refused("sizes beside --init", ["gpt", "train", "--text", text, "--init", d, "--model", "gpt:2x128x4"], "--init excludes --model", code=2)
    refused("bad heads", ["gpt", "train", "--text", text, "--model", "gpt:4x30x4", "--steps", 1], "heads", code=2)
    refused("bad betas", ["gpt", "train", "--text", text, "--optimizer", "adamw,beta2=1.5", "--steps", 1], "expected beta2 from 0 to below 1, got 1.5", code=2)
    refused("missing data", ["mlp", "train", "--data", d / "nowhere"], "nowhere", "'digits'")
    refused("empty data folder", ["cnn", "train", "--data", d], "train-images-idx3-ubyte")
    refused("resume without a folder", ["mlp", "train", "--resume"], "--out", code=2)
    refused("missing model", ["gpt", "eval", d / "none"], "no such file or folder")
    (d / "broken").mkdir()
    (d / "broken/config.json").write_text('{"program": "gpt", "vocab": 256,}')
    refused("broken config", ["gpt", "eval", d / "broken"], "config.json:1:")
    refused("no checkpoint", ["mlp", "eval", d / "broken"], "expected the folder of a run, or of its checkpoints; it holds none")

    # A run that stops and is resumed ends with the same bits as one that runs through.
    def checkpoint(name):
        return saved(d / name)

    def interrupt(process):
        process.send_signal(signal.SIGINT)

    entire = works("gpt train", ["gpt", "train", *tiny, "--steps", 30, "--out", d / "whole"], lambda r: result(r)["steps"] == 30)
    check("metrics", len((d / "whole/metrics.jsonl").read_text().splitlines()) == 30)
    refused("folder in use", ["gpt", "train", *tiny, "--steps", 30, "--out", d / "whole"], "--resume")
    code, out, err = disturbed([APPS / "gpt", "train", *tiny, "--steps", 100000, "--out", d / "stopped"], lambda: began(d / "stopped"), interrupt)
    check("46: Ctrl-C saves and stops", code == 130 and "--resume" in err and (d / "stopped/checkpoints/latest").exists(), err)
    # The learning rate schedule is that of 100,000 steps. The run to compare with has the same one, saves by
    # --save-every and is killed.
    disturbed([APPS / "gpt", "train", *tiny, "--steps", 30, "--save-every", 7, "--out", d / "killed"], (d / "killed/checkpoints/latest").exists, subprocess.Popen.kill)
    works("resume after kill -9", ["gpt", "train", *tiny, "--steps", 30, "--out", d / "killed", "--resume"], lambda r: checkpoint("killed") == checkpoint("whole"))
    deep = changed(tiny, "--model", "gpt:2x32x2")
    refused("resume of another model is refused", ["gpt", "train", *deep, "--steps", 30, "--out", d / "killed", "--resume"], "layers")
    works("one thread gives the same bits", ["gpt", "train", *tiny, "--steps", 30, "--out", d / "one", "--threads", 1], lambda r: checkpoint("one") == checkpoint("whole"))

    for precision in ("bf16", "f16"):
        works(f"train in {precision}", ["gpt", "train", *tiny, "--steps", 20, "--precision", precision], lambda r: result(r)["loss"] < 6)
    if offers("gpt", "train", "--init") and offers("gpt", "train", "--export"):
        exported = run("gpt", "train", *tiny, "--steps", 2, "--export", d / "hf")
        evaluated = run("gpt", "eval", d / "hf", "--text", text, "--json")
        works("fine-tuning a folder", ["gpt", "train", "--text", text, "--init", d / "hf", "--batch", 4, "--steps", 3, *RECOMPUTE, "--json"], lambda r: result(r)["steps"] == 3)
        check("export and eval", exported.returncode == 0 and evaluated.returncode == 0 and 0 < result(evaluated)["loss"] < 10, exported.stderr + evaluated.stderr)
    plain = run("gpt", "train", *deep, "--steps", 6)
    cpu, contiguous = ([word for key in keys for word in ("--set", f"activation_checkpointing.{key}")] for keys in (["cpu_checkpointing=true"], ["partition_activations=true", "contiguous_memory_optimization=true", "number_checkpoints=2"]))
    for options in ([], cpu, contiguous):
        works(f"checkpointed blocks {options}: the same loss", ["gpt", "train", *deep, "--steps", 6, *RECOMPUTE, *options], lambda r: result(r)["val_loss"] == result(plain)["val_loss"])
    works("activation_checkpointing.profile", ["gpt", "train", *tiny[:-1], "--steps", 3, *RECOMPUTE, "--set", "activation_checkpointing.profile=true", "--set", "steps_per_print=1"], lambda r: "backward ms" in r.stderr and "blocks.0" in r.stderr)

    mlp = ["--epochs", 2, "--samples", 600, "--json", "--seed", 3]
    entire = works("mlp train", ["mlp", "train", *mlp, "--out", d / "mlp"], lambda r: result(r)["test_accuracy"] > 0.5)
    half = run("mlp", "train", "--epochs", 1, *mlp[2:], "--out", d / "half")
    rest = run("mlp", "train", *mlp, "--out", d / "half", "--resume")
    check("mlp resume", rest.returncode == 0 and checkpoint("half") == checkpoint("mlp"), half.stderr + rest.stderr)
    run("mlp", "train", "--samples", 600, "--steps", 3, "--batch", 16, "--set", "ema.decay=0.9", "--out", d / "averaged")
    both = [run("mlp", "eval", d / "averaged", "--samples", 600, "--json", *more) for more in ([], ["--ema"])]
    check("the average of a run's parameters is other than they are", all(r.returncode == 0 for r in both) and result(both[0])["test_loss"] != result(both[1])["test_loss"], both)
    refused("no average", ["mlp", "eval", d / "mlp", "--ema"], "this run has no averaged parameters")
    works("mlp eval", ["mlp", "eval", d / "mlp", "--samples", 600, "--json", "--seed", 3], lambda r: result(r)["test_accuracy"] == result(entire)["test_accuracy"])

    # Ranks. A fixed list of micro-batches gives the same bits however they are distributed: parameters, optimizer,
    # metrics.
    def on(ranks, *args):
        return ["lockstep", "run", "-n", ranks, "--", APPS / args[0], *args[1:]]

    def same_run(name, other):
        return checkpoint(name) == checkpoint(other) and (d / name / "metrics.jsonl").read_text() == (d / other / "metrics.jsonl").read_text()

    for precision in ("f32", "f16"):
        gpt = ["gpt", "train", *tiny, "--steps", 12, "--save-every", 5, "--precision", precision]
        single = result(works(f"accumulation in {precision}", [*gpt, "--accumulate", 4, "--out", d / f"1x4{precision}"]))
        for ranks in (2, 4):
            for launch_mode in ("processes", "threads"):
                name = f"{launch_mode}{ranks}{precision}"
                args = [*gpt, "--accumulate", 4 // ranks, "--out", d / name]
                r = run(*on(ranks, *args)) if launch_mode == "processes" else run(*args, "--ranks", ranks)
                check(f"{ranks} {launch_mode} in {precision}: the bits of one process", r.returncode == 0 and same_run(name, f"1x4{precision}"), r.stdout + r.stderr)
                last = [json.loads(line[line.index("{") :]) for line in r.stdout.splitlines() if "{" in line]
                check(f"{ranks} {launch_mode} in {precision}: one result, by rank 0", len(last) == 1 and last[0]["ranks"] == ranks and last[0]["val_loss"] == single["val_loss"], r.stdout)
    disturbed([APPS / "lockstep", "run", "-n", 4, "--", APPS / "gpt", "train", *tiny, "--steps", 30, "--save-every", 7, "--out", d / "moved"], (d / "moved/checkpoints/latest").exists, subprocess.Popen.kill)
    entire = run("gpt", "train", *tiny, "--steps", 30, "--accumulate", 4, "--out", d / "whole4")
    works("a run killed on 4 ranks goes on with 2", on(2, "gpt", "train", *tiny, "--steps", 30, "--accumulate", 2, "--out", d / "moved", "--resume"), lambda r: checkpoint("moved") == checkpoint("whole4"))
    # Rank 1 dies twice, once before the first checkpoint; the launcher restarts all ranks.
    dying = f'''[ $RANK = 1 ] && case $TORCHELASTIC_RESTART_COUNT in 0) kill -9 $$;; 1) (while [ ! -e "{d}/again/checkpoints/latest" ]; do sleep 0.01; done; kill -9 $$) & esac; exec "$@"'''
    r = run("lockstep", "run", "-n", 2, "--max-restarts", 2, "--restart-pause", 0, "--", "sh", "-c", dying, "sh", APPS / "gpt", "train", *tiny, "--steps", 300, "--save-every", 10, "--out", d / "again")
    calm2 = run(*on(2, "gpt", "train", *tiny, "--steps", 300, "--save-every", 10, "--out", d / "calm2"))
    check("48: restarted by the launcher: the bits of a calm run", r.returncode == 0 and r.stderr.count("rank 1 was killed by SIGKILL") == 2 and calm2.returncode == 0 and checkpoint("again") == checkpoint("calm2"), r.stdout + r.stderr + calm2.stderr)
    works("another list of micro-batches is said", on(2, "gpt", "train", *tiny, "--steps", 32, "--out", d / "moved", "--resume"), lambda r: "train_batch_size was 16 and is now 8" in r.stderr)

    # ZeRO reads and writes the same checkpoints as DDP, at every stage.
    short = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--warmup", 2, "--dropout", 0.1, "--ranks", 2]
    run(*short, "--steps", 4, "--out", d / "ddp4")
    shutil.copytree(d / "ddp4", d / "ddp7")
    run(*short, "--steps", 7, "--out", d / "ddp7", "--resume")
    for stage in range(4):
        works(f"ZeRO {stage}: the checkpoint of DDP", [*short, "--steps", 4, "--plan", f"zero{stage}", "--out", d / f"zero{stage}"], lambda r: checkpoint(f"zero{stage}") == checkpoint("ddp4"))
        shutil.copytree(d / "ddp4", d / f"on{stage}")
        offload = ["none", "cpu", "cpu", f"nvme:{d}"][stage]
        works(f"ZeRO {stage} goes on from DDP's checkpoint", [*short, "--steps", 7, "--plan", f"zero{stage}", "--offload", offload, "--out", d / f"on{stage}", "--resume"], lambda r: checkpoint(f"on{stage}") == checkpoint("ddp7") != checkpoint("ddp4"))

    # 19.2 micro-batches: 9 or 4 steps; the rest is dropped
    mlp = ["mlp", "train", "--epochs", 2, "--samples", 613, "--batch", 32, "--json", "--seed", 3]
    entire = works("mlp with accumulation", [*mlp, "--accumulate", 4, "--out", d / "mlp1x4"], lambda r: result(r)["steps"] == 8)
    for name, r in {"mlp2x2": run(*on(2, *mlp, "--accumulate", 2, "--out", d / "mlp2x2")), "mlp4x1": run(*mlp, "--ranks", 4, "--out", d / "mlp4x1"),
                    "mlp zero2": run(*mlp, "--accumulate", 2, "--ranks", 2, "--plan", "zero2", "--out", d / "mlp zero2"), "mlp zero1": run(*mlp, "--accumulate", 2, "--ranks", 2, "--plan", "zero1", "--out", d / "mlp zero1")}.items():
        check(f"{name}: the bits of one process", r.returncode == 0 and same_run(name, "mlp1x4"), r.stdout + r.stderr)
    two = '{"train_micro_batch_size_per_gpu": 2}'
    refused("an option and a file that differ", ["mlp", "train", "--config", two, "--batch", 4], "- ds train_micro_batch_size_per_gpu=2 vs args --batch=4", code=2)
    works("mlp in stages, with a file and a key", ["mlp", "train", "--samples", 64, "--config", two, "--set", "gradient_clipping=0.5", "--steps", 2, "--json", "--ranks", 2, "--plan", "pp2"], lambda r: result(r)["plan"] == "pp2")
    refused("a plan that cannot be", ["mlp", "train", "--ranks", 2, "--plan", "pp2+zero2"], "[plan] pp2+zero2 is invalid: ", "The nearest plan that works: ", code=2)
    works("mlp --steps", ["mlp", "train", "--samples", 300, "--batch", 64, "--steps", 3, "--json"], lambda r: result(r)["steps"] == 3)
    refused("more micro-batches than samples", ["mlp", "train", "--samples", 100, "--batch", 64, "--ranks", 2], "at least train_batch_size 128 samples", "got 100")
    works("mlp: another list of micro-batches is said", on(2, *mlp, "--accumulate", 1, "--out", d / "mlp2x2", "--resume"), lambda r: "train_batch_size was 128 and is now 64" in r.stderr)

    code, out, err = disturbed([APPS / "lockstep", "run", "-n", 2, "--", APPS / "gpt", "train", *tiny, "--steps", 100000, "--out", d / "both"], lambda: began(d / "both"), interrupt)
    check("46: Ctrl-C on 2 ranks saves and stops", code == 130 and "stopped at step" in err and "--resume" in err and (d / "both/checkpoints/latest").exists(), out + err)

    # SIGTERM at one rank stops all of them and leaves a complete checkpoint; the launcher does not restart a job that
    # was asked to stop.
    for exit_zero in (False, True):
        out = d / f"term{exit_zero}"
        code, _, err = disturbed([APPS / "lockstep", "run", "-n", 2, "--max-restarts", 2, "--", APPS / "gpt", "train", *tiny, "--steps", 100000, "--out", out], lambda: began(out),
                                 lambda _: os.kill(next(pid for pid, line in processes_with("RANK=1").items() if str(out) in line), signal.SIGTERM), LOCKSTEP_SIGNAL_EXIT_ZERO=str(int(exit_zero)))
        check(f"46: SIGTERM at one rank, {exit_zero}", code == (0 if exit_zero else 143) and err.count("stopped at step") == 1 and "starting all ranks again" not in err, f"{code}: {err}")
        works(f"46: SIGTERM at one rank, {exit_zero}: the checkpoint is whole", ["gpt", "eval", out, "--text", text, "--json"], lambda r: result(r)["loss"] > 0)

    # --resume without a checkpoint starts from the beginning, and a folder with a run of another model is left
    # unchanged.
    short = [*tiny, "--steps", 2, "--out", d / "unsaved"]
    run("gpt", "train", *short)
    shutil.rmtree(d / "unsaved/checkpoints")
    (d / f"unsaved/config.json.tmp-{os.uname().nodename}-4194000-0").write_text("of a killed save")
    before = (d / "unsaved/config.json").read_text()
    refused("resume of another model that saved nothing", ["gpt", "train", *changed(tiny, "--model", "gpt:1x64x2"), "--steps", 2, "--out", d / "unsaved", "--resume"], "width was 32 and is now 64")
    check("and its folder is as it was", (d / "unsaved/config.json").read_text() == before)
    works("resume without a checkpoint begins", ["gpt", "train", *short, "--resume"], lambda r: result(r)["steps"] == 2 and "holds no checkpoint, so --resume begins at step 0" in r.stderr)
    check("what a killed save left is gone", not list((d / "unsaved").glob("*.tmp-*")))
    works("resume in no folder begins", on(2, *["gpt", "train", *short[:-1], d / "nowhere", "--resume"]), lambda r: (d / "nowhere/checkpoints/latest").exists())

    works("without validation", ["gpt", "train", *tiny, "--steps", 2, "--validation", 0], lambda r: result(r)["steps"] == 2 and "val_loss" not in result(r))

    # Output paths are opened before the first step.
    exports = offers("gpt", "train", "--export")
    for option, path in (("--out", "/proc/none"), ("--trace", "/proc/none/x"), ("--trace-bits", "/proc/none/x"), *[("--export", "/proc/none"), ("--export", text)] * exports):
        refused(f"{option} {path} is refused at once", ["gpt", "train", *tiny, "--steps", 100000, option, path], str(path).split("/x")[0], timeout=60)

    # Output paths and the checkpoint are checked before a run's folder is changed.
    def content(folder_):
        return {str(p.relative_to(folder_)): p.read_bytes() if p.is_file() else None for p in sorted(folder_.rglob("*"))} if folder_.exists() else None

    small = ["gpt", "train", *tiny[: tiny.index("--dropout")], "--json"]
    config_file = d / "engine.json"
    config_file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}))
    for name, args in (("gpt", small), ("stages", [*small, "--ranks", 2, "--plan", "pp2", "--accumulate", 2]), ("an engine", [*(a for a in small if a not in ("--batch", 4, "--warmup", 5)), "--config", config_file]), ("mlp", ["mlp", "train", "--samples", 64])):
        out = d / f"as it was, {name}"
        works(f"{name}: a run", [*args, "--steps", 1, "--out", out])
        before = content(out)
        for option, place in [("--trace-bits", "/proc/none/x"), *[("--export", text)] * (exports and name != "mlp")]:
            for where, more, was in ((d / "never", [], None), (out, ["--resume"], before)):
                refused(f"{name}: no place for {option}", [*args, "--steps", 2, "--out", where, *more, option, place], option)
                check(f"{name}: no place for {option} leaves {where.name}", content(where) == was)
        for file in [p for p in out.rglob("*.safetensors") if name != "an engine" or p.parent != out]:
            file.write_bytes(file.read_bytes()[:-100])
        before = content(out)
        refused(f"{name}: a damaged checkpoint", [*args, "--steps", 3, "--out", out, "--resume"], "safetensors")
        check(f"{name}: a damaged checkpoint leaves all as it was", content(out) == before)

    # Output that cannot be written, and processes without standard streams.
    full = [("gpt train", ["gpt", "train", *tiny, "--steps", 1]), ("gpt eval", ["gpt", "eval", d / "whole", "--text", text]), ("lockstep env", ["lockstep", "env"]), ("lockstep config", ["lockstep", "config", "--reference"]),
            ("mlp --help", ["mlp", "--help"]), ("a launcher", ["lockstep", "run", "-q", "-n", 2, "--", APPS / "gpt", "train", *tiny, "--steps", 1])]
    for name, args in full:
        with open("/dev/full", "w") as nowhere:
            r = subprocess.run([str(APPS / args[0]), *map(str, args[1:])], stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=120)
        check(f"{name} > /dev/full", r.returncode == 1 and "standard output cannot be written (No space left on device)" in r.stderr, f"{r.returncode}: {r.stderr}")
    r = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", str(APPS / "gpt"), "train", *map(str, tiny[:-1]), "--steps", "3", "--out", str(d / "closed")], timeout=120)
    check("without standard streams", r.returncode == 0 and [json.loads(line)["step"] for line in (d / "closed/metrics.jsonl").read_text().splitlines()] == [1, 2, 3])

    # Resource limits of the shell; each error names the limit.
    for limit, args, said in (("-s 64", ["gpt", "train", *tiny, "--steps", 1], "limited to 64 KiB, expected 1024 KiB"), ("-S -s 64", ["mlp", "train", "--samples", 64, "--steps", 1, "--json"], None),
                              ("-f 100", ["gpt", "train", *tiny, "--steps", 1, "--out", d / "limited"], "limited/checkpoints")):
        r = subprocess.run(["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", str(APPS / args[0]), *map(str, args[1:])], capture_output=True, text=True, timeout=120)
        check(f"ulimit {limit}", (r.returncode, said or "") == (1, said) and said in r.stderr if said else r.returncode == 0, f"{r.returncode}: {r.stderr}")
    r = run("lockstep", "run", "-n", 1, "true", TMPDIR="/no/such")
    check("TMPDIR that is not there", r.returncode == 1 and "TMPDIR=/no/such" in r.stderr, r.stderr)

    # Invalid command lines exit with 2, both with one process and before ranks start.
    for args in (["gpt", "train", "--device", "tpu"], ["gpt", "train", "--plan", "xx2"], ["gpt", "train", "--optimizer", "adamw,beta1=1"], ["gpt", "train", "--model", "gpt:4x33x2"], ["gpt", "train", "--save-every", 3], ["mlp", "train", "--save-every", 3], ["mlp", "train", "--freeze-step", 3], ["mlp", "train", "--device", "cuda:x"],
                 ["lockstep", "run", "-n", 0, "--", "true"], ["lockstep", "run", "-n", 2], ["lockstep", "run", "-n", 2, "--nnodes", 2, "--", "true"], ["lockstep", "verify", "--plans", "ddp"], ["lockstep", "simulate", "ring", "--ranks", 4, "--bytes", "x"]):
        refused(" ".join(map(str, args)), args, code=2)

    refused("ddp without ranks", ["gpt", "train", "--text", text, "--parallel", "ddp"], "lockstep run -n N", code=2)
    refused("dp with ranks", ["gpt", "train", "--text", text, "--parallel", "dp", "--ranks", 2], "--parallel dp:N", code=2)
    refused("no such optimizer", ["gpt", "train", "--text", text, "--optimizer", "onebit"], "--optimizer", code=2)
    refused("zero 4", ["gpt", "train", "--text", text, "--plan", "zero4", "--ranks", 2], "zero", code=2)
    refused("offload of what", ["gpt", "train", "--text", text, "--plan", "zero1", "--ranks", 2, "--offload", "disk"], "expected none, cpu or nvme:FOLDER, got 'disk'", code=2)
    refused("offload without zero", ["gpt", "train", "--text", text, "--ranks", 2, "--offload", "cpu"], "needs ZeRO: --plan zero1", code=2)
    refused("offload without a folder", ["gpt", "train", "--text", text, "--plan", "zero3", "--ranks", 2, "--offload", f"nvme:{d}/none"], "expected a folder where a file can be made", f"{d}/none")
    refused("devices that are none", ["gpt", "train", "--text", text, "--parallel", "dp:0"], "from 1 to 64", code=2)
    # Without dropout, because each device has its own dropout numbers.
    calm = tiny[: tiny.index("--dropout")] + ["--json"]
    plain = run("gpt", "train", *calm, "--steps", 5)
    for devices in (1, 3):  # 4 sequences on 3 devices: 2 and 2
        works(f"gpt on {devices} devices", ["gpt", "train", *calm, "--steps", 5, "--parallel", f"dp:{devices}"], lambda r: abs(result(r)["loss"] - result(plain)["loss"]) < 1e-4)
    refused("none with ranks", ["gpt", "train", "--text", text, "--parallel", "none", "--ranks", 2], "one rank", code=2)
    refused("none in a job", on(2, "gpt", "train", "--text", text, "--parallel", "none"), "a job of 2 ranks", code=2)
    refused("eval in a job", on(2, "gpt", "eval", d / "whole", "--text", text), "eval runs in one process")
    refused("--ranks in a job", on(2, "gpt", "train", "--text", text, "--ranks", 2), "not both", code=2)
    # The first cause is reported by every rank, and the launcher finds it in the error file.
    (d / "file").write_text("")
    refused("an error of rank 0 ends all ranks", on(2, "gpt", "train", *tiny, "--steps", 3, "--out", d / "file" / "run"), "error: rank 0: ", "cannot make this folder")
    script = f"if [ $RANK = 1 ]; then exec {APPS}/gpt train --text {text} --model gpt:4x64x2; else exec {APPS}/gpt train --text {text} --model gpt:4x32x2; fi"
    r = run("lockstep", "run", "-n", 2, "--", "sh", "-c", script)
    check("29: ranks with different options do not meet", r.returncode != 0 and "gpt:4x64x2" in r.stderr, r.stderr)

    # A rank that dies is named by the others, and the flight records tell where the others were.
    dies = [APPS / "lockstep", "run", "-n", 3, "--log-dir", d / "logs", "--", "sh", "-c", f'echo $$ > {d}/pid$RANK; exec "$@"', "sh", APPS / "gpt", "train", *tiny, "--steps", 100000, "--out", d / "dies"]
    code, out, err = disturbed(dies, lambda: began(d / "dies"), lambda _: os.kill(int((d / "pid1").read_text()), signal.SIGKILL))
    check("a killed rank ends the job", code == 137 and "rank 1 was killed by SIGKILL" in err and len(re.findall(r"error: rank [02]: rank 1 \(pid", err)) == 1, out + err)
    records = next((d / "logs").glob("*/attempt_0"))
    works("lockstep flight", ["lockstep", "flight", records], lambda r: "rank 0: " in r.stdout and "rank 2: " in r.stdout and "rank 1 (pid" in r.stdout)
    refused("lockstep flight without records", ["lockstep", "flight", d], str(d))

    # lockstep verify
    verify = [APPS / "gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--warmup", 2, "--dropout", 0.1, "--steps", 4]
    works("verify", ["lockstep", "verify", "--plans", "none:1x4,ddp:1x4,ddp:2x2,ddp:4x1", "--vary", "transport=threads,shm,tcp", "--", *verify], lambda r: r.stdout.splitlines()[-1] == "identical" and r.stdout.count("same bits") == 9)
    works("verify with options", ["lockstep", "verify", "--plans", "ddp:2x2,ddp@overlap=off,bucket=0.001:2x2", "--vary", "bucket=0.01,25", "--steps", 3, "--", *verify[:-2]], lambda r: r.stdout.splitlines()[-1] == "identical" and len(r.stdout.splitlines()) == 4)
    r = run("lockstep", "verify", "--plans", "ddp:1x4,zero0:2x2,zero1:2x2,zero2:4x1,zero2@bucket=0.001:2x2,zero3:1x4,zero3:4x1,zero3@overlap=off:2x2,zero1-cpu:2x2,zero2-nvme:2x2,zero3-cpu:4x1,zero3-nvme:2x2", "--vary", "transport=threads", "--", *verify)
    check("verify ZeRO", r.returncode == 0 and r.stdout.splitlines()[-1] == "identical" and r.stdout.count("same bits") == 11, r.stdout + r.stderr)
    fake = d / "fake.py"  # with two ranks it differs from step 2 on
    fake.write_text("""import os, sys
a = sys.argv
if os.environ.get("RANK", "0") == "0":
    with open(a[a.index("--trace-bits") + 1], "w") as f:
        for step in range(1, 4):
            bad = "1" if step >= 2 and os.environ.get("WORLD_SIZE") == "2" else "0"
            f.write('{"step": %d, "loss": "3ff0000000000000", "parameters": {"a": "0", "b": "%s"}}\\n' % (step, bad))
""")
    r = run("lockstep", "verify", "--plans", "ddp:1x4,ddp:4x1,ddp:2x2", "--", sys.executable, fake)
    check("verify finds a difference", r.returncode == 1 and r.stdout.splitlines()[-1] == "ddp:2x2 differs from ddp:1x4 first at step 2, b (1 of 2 parameters); docs/verify.md says what to check", r.stdout + r.stderr)

    def layers(n):
        return changed(verify[:-2], "--model", f"gpt:{n}x32x2")

    works("verify pipelines", ["lockstep", "verify", "--plans", "ddp:1x4,pp2:2x4,pp4:4x4,dp2+pp2:4x2,pp2@transport=threads:2x4", "--steps", 3, "--", *layers(2)], lambda r: r.stdout.splitlines()[-1] == "identical" and r.stdout.count("same bits") == 4)
    works("verify with keys of a pipeline", ["lockstep", "verify", "--plans", "ddp:1x8,pp2@transport=threads:2x8", "--steps", 2, "--", *layers(3), "--set", "pipeline.schedule=dualpipe-v", "--set", "pipeline.partition=uniform"], lambda r: r.stdout.splitlines()[-1] == "identical")
    refused("verify: other numbers of ranks than stages", ["lockstep", "verify", "--plans", "dp2+pp2:2x2", "--", "true"], "it is for 4 ranks, and there are 2. The nearest plan that works: pp2", code=2)
    refused("verify: pipeline with options of ddp", ["lockstep", "verify", "--plans", "pp2@bucket=1:2x4", "--", "true"], "take the option transport only", code=2)
    for schedule in ("gpipe", "zb-h1", "interleaved", "dualpipe-v"):
        works(f"gpt train, a pipeline by {schedule}", ["gpt", "train", "--text", text, "--model", "gpt:3x16x2", "--context", 16, "--batch", 2, "--steps", 3, "--eval-every", 2, "--ranks", 4, "--plan", "pp2", "--accumulate", 4, "--set", f"pipeline.schedule={schedule}", "--json"], lambda r: '"val_loss"' in r.stdout)
    refused("a pipeline that does not divide the ranks", ["gpt", "train", "--text", text, "--ranks", 3, "--plan", "pp2"], "it is for 2 ranks, and there are 3", code=2)
    refused("a pipeline with ZeRO 2", ["gpt", "train", "--text", text, "--ranks", 2, "--plan", "pp2+zero2"], "a pipeline sums all micro-batches first", "The nearest plan that works: pp2+zero1", code=2)
    refused("a plan of other ranks", ["gpt", "train", "--text", text, "--ranks", 8, "--plan", "dp2+pp2"], "it is for 4 ranks, and there are 8. The nearest plan that works: dp4+pp2", code=2)
    refused("a plan of too many stages", ["gpt", "train", "--text", text, "--model", "gpt:1x128x4", "--ranks", 8, "--plan", "pp8"], "8 stages need 8 layers, the model has 6. The nearest plan that works: dp2+pp4")
    refused("a plan of slices without heads", ["gpt", "train", "--text", text, "--model", "gpt:4x48x3", "--ranks", 2, "--plan", "tp2"], "tp2 does not divide the 3 attention heads", "nearest plan that works: dp2")
    refused("a plan of experts that are not there", ["gpt", "train", "--text", text, "--ranks", 2, "--plan", "dp2+ep2"], "shares experts, and the model has none")

    # A checkpoint does not depend on the plan: 3 steps under one plan and 3 under another equal 6 steps of one process,
    # byte for byte.
    parts = ["gpt", "train", "--text", text, "--model", "gpt:2x16x2", "--context", 16, "--batch", 2, "--dropout", 0.1, "--eval-every", 100, "--json"]
    for precision in ("f32", "f16"):
        entire, first = d / f"whole-{precision}", d / f"first-{precision}"
        works(f"gpt train, one process, {precision}", [*parts, "--precision", precision, "--accumulate", 4, "--steps", 6, "--out", entire])
        for name, plan in (("pp2", ["--plan", "pp2", "--ranks", 2, "--accumulate", 4]), ("dp2+pp2+zero1", ["--plan", "dp2+pp2+zero1", "--ranks", 4, "--accumulate", 2]), ("one process", ["--accumulate", 4])):
            out = d / f"{name}-{precision}"
            for steps, more in ((3, ["--plan", "pp3", "--ranks", 3, "--accumulate", 4] if name == "one process" else plan), (6, plan)):
                works(f"gpt train {name}, {precision}, to step {steps}", [*parts, "--precision", precision, "--steps", steps, *(["--lr", 1e-3] if steps == 6 else ["--lr", 1e-3]), *more, "--out", out, *(["--resume"] if steps == 6 else [])])
            check(f"the file of {name}, {precision}", checkpoint(out.name) == checkpoint(entire.name), name)
        works("eval of a model that was trained in parts", ["gpt", "eval", d / f"pp2-{precision}", "--text", text, "--json"])
    works("verify slices by their losses", ["lockstep", "verify", "--plans", "ddp:1x4,pp2+tp2@transport=threads:4x4,dp2+tp2@transport=threads:4x2", "--steps", 3, "--", *layers(2)], lambda r: r.stdout.count("losses within") == 2)
    works("gpt train dp2+pp2+tp2+zero1", ["gpt", "train", "--text", text, "--model", "gpt:2x16x2", "--context", 16, "--batch", 2, "--steps", 3, "--ranks", 8, "--plan", "dp2+pp2+tp2+zero1", "--accumulate", 2, "--json"], lambda r: '"plan":"dp2+pp2+tp2+zero1"' in r.stdout.replace(" ", ""))
    refused("verify: unknown strategy", ["lockstep", "verify", "--plans", "zero9:1x4", "--", "true"], "zero9", "ddp, zero0 to zero3 (from zero1 on also with -cpu or -nvme), axes such as pp4 and dp2+pp2+tp2+zero1, and none", code=2)
    refused("verify: other batches", ["lockstep", "verify", "--plans", "ddp:1x4,ddp:2x4", "--", "true"], "ddp:2x4 = 8", code=2)
    refused("verify: no sizes", ["lockstep", "verify", "--plans", "ddp", "--", "true"], "ddp:2x4", code=2)
    refused("verify: option of ours", ["lockstep", "verify", "--", "gpt", "train", "--out", "x"], "--out", code=2)
    refused("verify: no trace", ["lockstep", "verify", "--plans", "ddp:1x4", "--", "true"], "--trace-bits")
    refused("verify: failing program", ["lockstep", "verify", "--plans", "none:1x4", "--", "sh", "-c", "echo oh no; exit 3"], "exit code 3", "oh no")

    r = subprocess.run(["sh", "-c", f"ulimit -f 8; exec {APPS}/mlp train --epochs 1 --samples 300 --out {d}/small --json"], capture_output=True, text=True)
    check("a file that cannot be written whole is not left broken", r.returncode != 0 and not (d / "small/checkpoints/latest").exists(), r.stderr)
    check("nothing is left", not left_behind(d), left_behind(d))

finish()
