#!/usr/bin/env python3
"""The example programs print what their comments and pages promise.

tests/examples.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import os
import pathlib
import re
import sys
import tempfile

from programs import check, finish, refused, run, works

BUILD = pathlib.Path(sys.argv[1]).resolve()


def example(name):
    return BUILD / "examples" / name


# DataParallel: batches of 30, 30, 30 and 10 rows, scattered over the devices.
if example("data_parallel").exists():  # it uses the extension data_parallel
    for devices, pieces in (("1", {30: [30], 10: [10]}), ("2", {30: [15, 15], 10: [5, 5]}), ("3", {30: [10, 10, 10], 10: [4, 4, 2]}), ("8", {30: [4] * 7 + [2], 10: [2] * 5})):
        r = works(f"data_parallel, {devices} devices, ends well", [example("data_parallel")], lambda r: "warning" not in r.stderr, LOCKSTEP_CPU_DEVICES=devices)
        inside, found = [], []
        for line in r.stdout.splitlines():
            if m := re.fullmatch(r"\tIn Model: input size \((\d+), 5\) output size \((\d+), 2\)", line):
                inside.append(int(m[1]))
                check("sizes inside agree", m[1] == m[2], line)
            if m := re.fullmatch(r"Outside: input size \((\d+), 5\) output size \((\d+), 2\)", line):
                found.append((int(m[1]), sorted(inside, reverse=True)))
                inside = []
        check(f"data_parallel, {devices} devices, sizes", found == [(n, sorted(pieces[n], reverse=True)) for n in (30, 30, 30, 10)], r.stdout)
        check(f"data_parallel, {devices} devices, table", ("busiest: cpu:0" in r.stdout) == (devices != "1"), r.stdout)

    for bad in ("0", "two", "65"):
        r = run(example("data_parallel"), LOCKSTEP_CPU_DEVICES=bad)
        check(f"LOCKSTEP_CPU_DEVICES={bad}", r.returncode != 0 and f"expected LOCKSTEP_CPU_DEVICES to be a number from 1 to 64, got '{bad}'" in r.stderr, r.stderr)

one, two = run(example("model_parallel")), run(example("model_parallel"), LOCKSTEP_CPU_DEVICES="2")
losses = [re.findall(r"step \d loss (\S+)", r.stdout) for r in (one, two)]
check("model_parallel", one.returncode == 0 and two.returncode == 0 and len(losses[0]) == 3 and losses[0] == losses[1], one.stdout + two.stdout + two.stderr)
check("model_parallel, places", "net2.weight\t(5, 10)\tcpu:1" in two.stdout and "net1.weight\t(10, 10000)\tcpu:0" in two.stdout, two.stdout)
check("model_parallel, label elsewhere", re.search(r"expected one device, got \(20, 5\) on cpu:1 and \(20, 5\) on cpu:0", two.stdout), two.stdout)

# The batch in splits: sums are in another order, so losses agree up to rounding.
for devices in ("1", "2"):
    r = run(example("model_parallel_pipelined"), LOCKSTEP_CPU_DEVICES=devices)
    losses = [[float(x) for x in line.split("losses ")[1].split()] for line in r.stdout.splitlines() if "losses" in line]
    check(f"model_parallel_pipelined, {devices} devices", r.returncode == 0 and len(losses) == 3 and all(len(row) == 3 and row[2] < row[0] for row in losses)
          and all(abs(a - b) < 1e-5 * b for row in losses for a, b in zip(row, losses[0])), r.stdout + r.stderr)

# An LSTM language model: in a few seconds it starts to memorize the licence.
if example("char_lstm").exists():  # it uses the extension recurrent
    r = run(example("char_lstm"), pathlib.Path(__file__).resolve().parent.parent / "LICENSE", "--steps", 60, "--width", 96, OMP_NUM_THREADS="1")
    losses = [float(x) for x in re.findall(r"^step \d+ loss (\S+)$", r.stdout, re.M)]
    check("char_lstm learns", r.returncode == 0 and len(losses) == 4 and losses[0] > 5 and losses[-1] < 2.4 and "says The " in r.stdout, r.stdout + r.stderr)
    refused("char_lstm, a short text", [example("char_lstm"), __file__, "--batch", 100000], "expected a text of more than 3200000 characters")

# Device maps: the same text wherever parts are placed, and every part is placed within the limits.
if example("device_map").exists():
    said = set()
    for devices, words in (("1", []), ("2", []), ("2", ["balanced_low_0"]), ("3", ["sequential", "cpu:0=64KiB", "cpu:1=40KiB", "cpu=30KiB"]), ("2", ["auto", "cpu:0=60000", "disk=1GB"])):
        with tempfile.TemporaryDirectory() as d:
            r = run(example("device_map"), *words, "--svg", f"{d}/map.svg", LOCKSTEP_CPU_DEVICES=devices, TMPDIR=d)
            name = f"device_map {' '.join(words)} on {devices}"
            check(f"{name}, ends well", r.returncode == 0 and len(re.findall(r"^\d+,\t\S+\tcpu(:\d)?\tf32$", r.stdout, re.M)) == 6 * 12 + 4, r.stdout + r.stderr)
            check(f"{name}, draws", pathlib.Path(d, "map.svg").read_text().endswith("</svg>\n"))
            check(f"{name}, leaves nothing", os.listdir(d) == ["map.svg"], os.listdir(d))
            said |= set(re.findall(r"^says ([\d ]+);", r.stdout, re.M))
            check(f"{name}, limits", ("kept free" in r.stdout) == any("=" in word for word in words) == ("parts came 0 times" not in r.stdout), r.stdout)
    check("device_map, one text", len(said) == 1, said)
    for words, text in ((["even"], "expected auto, balanced"), (["auto", "cpu:0=9KiB"], "limits are too small: cpu:0 may hold 9216 bytes"), (["auto", "cpu:7=1GiB"], "got cpu:7"), (["auto", "cpu:0=lots"], "expected bytes such as")):
        refused(f"device_map refuses {words}", [example("device_map"), *words], text)

# DDP: ranks spawned by the program itself, or by the launcher. 2048 samples in batches of 32 are 64 steps of one rank,
# or 32 of two ranks.
lockstep = BUILD / "apps/lockstep"
ways = [(n, [example("ddp_spawn"), "--world_size", n, *more]) for n in (1, 2, 3) for more in ([], ["--threads"])] + [(2, [lockstep, "run", "--nproc", 2, "--", example("ddp")])]
for ranks, command in ways:
    name = " ".join([pathlib.Path(c).name if isinstance(c, pathlib.Path) else str(c) for c in command])
    r = run(*command, "--max_epochs", 2, "--batch_size", 32)
    steps = -(-(-(-2048 // ranks)) // 32)
    lines = re.findall(r"\[Rank: (\d+)\] Epoch: (\d) \| Batchsize: 32 \| Steps: (\d+) \| Loss: ([\d.]+)", r.stdout)
    done = re.findall(r"\[Rank: \d+\] Done \| Bias: (\S+)", r.stdout)
    check(f"{name}, ends well", r.returncode == 0, r.stdout + r.stderr)
    check(f"{name}, steps", sorted((int(a), int(b), int(c)) for a, b, c, _ in lines) == [(a, b, steps) for a in range(ranks) for b in range(2)], r.stdout)
    check(f"{name}, learns", all(0 < float(loss) < 1 for *_, loss in lines), r.stdout)
    check(f"{name}, one model on all ranks", len(done) == ranks and len(set(done)) == 1, r.stdout)
r = run(example("ddp"))
check("ddp without a launcher", r.returncode == 1 and "WORLD_SIZE" in r.stderr, r.stdout + r.stderr)

# The guide's training loop with accelerate's names: the same losses and learning rates to the last digit, for any
# number of ranks.
if example("guide_a_accelerate").exists():  # built with the extension that it uses
    finished = {}
    for ranks in (1, 2, 4):
        with tempfile.TemporaryDirectory() as d:
            r = works(f"guide_a_accelerate, {ranks} ranks, ends well", [lockstep, "run", "--nproc", ranks, "--", example("guide_a_accelerate"), "--accumulate", 4 // ranks], lambda r: "of 20 = 80 samples" in r.stderr, cwd=d)
            finished[ranks] = re.findall(r"epoch (\d), loss of the last step (\S+), lr (\S+)", r.stdout)
            works(f"guide_a_accelerate, {ranks} ranks, the checkpoint is whole", [lockstep, "checkpoint", "verify", pathlib.Path(d) / "state"])
    with tempfile.TemporaryDirectory() as d:
        works("guide_a_accelerate, alone", [example("guide_a_accelerate")], lambda r: re.findall(r"epoch (\d), loss of the last step (\S+), lr (\S+)", r.stdout) == finished[1], cwd=d)
    if "\n  plan " in run(lockstep, "--help").stdout:  # built with the extension that adds the command
        works("guide_a_accelerate, asked what it trains", [lockstep, "plan", "--ranks", 1, "--", example("guide_a_accelerate")], lambda r: "2125 parameters" in r.stdout)
    check("guide_a_accelerate, the same losses and rates", len(finished[1]) == 3 and finished[1][2][2] == "0.0125" and finished[1] == finished[2] == finished[4], str(finished))

# The guide's configuration and training script: the same losses to the last digit, for any number of ranks.
config = pathlib.Path(__file__).resolve().parent.parent / "examples/guide_b/ds_config.json"
if example("guide_b").exists():  # its file has keys of extensions
    finished = {}
    for ranks in (1, 2, 4):
        with tempfile.TemporaryDirectory() as d:
            r = run(lockstep, "run", "--nproc", ranks, "--", example("guide_b"), "--deepspeed_config", config, "--epochs", 3, cwd=d)
            name = f"guide_b, {ranks} ranks"
            check(f"{name}, ends well", r.returncode == 0 and "Training finished and model saved." in r.stdout, r.stdout + r.stderr)
            check(f"{name}, all start", r.stdout.count("Starting training...") == ranks, r.stdout)
            check(f"{name}, says what the guide's keys do here", "offload_param: ignored below stage 3" in r.stderr and "stage3_max_act_size" in r.stderr, r.stderr)
            check(f"{name}, prints", "step=10, skipped=" in r.stderr, r.stderr)
            finished[ranks] = re.findall(r"Epoch (\d) finished, loss of the last step (\S+)", r.stdout)
            events = list((pathlib.Path(d) / "tensorboard_logs/my_deepspeed_experiment").glob("events.out.tfevents.*"))
            check(f"{name}, one file for TensorBoard", len(events) == 1 and events[0].stat().st_size > 1000, str(events))
            if "\n  checkpoint " in run(lockstep, "--help").stdout:  # built with the extension that adds the command
                works(f"{name}, the checkpoint is whole", [lockstep, "checkpoint", "verify", pathlib.Path(d) / "final_model_checkpoint"])
    check("guide_b, the same losses", len(finished[1]) == 3 and finished[1] == finished[2] == finished[4], str(finished))
    with tempfile.TemporaryDirectory() as d:
        works("guide_b, alone", [example("guide_b"), "--deepspeed_config", config, "--epochs", 3], lambda r: "no launcher started this process" in r.stderr and re.findall(r"Epoch (\d) finished, loss of the last step (\S+)", r.stdout) == finished[1], cwd=d)
        printed = pathlib.Path(d) / "printed.json"
        printed.write_text(config.read_text().replace('"optimizer": {', '"gradient_accumulation_steps": 8, "optimizer": {', 1))
        refused("guide_b, its batch sizes on four ranks", [lockstep, "run", "--nproc", 4, "--", example("guide_b"), "--deepspeed_config", printed], "train_batch_size", "64", code=2, cwd=d)
        refused("guide_b, no such file", [example("guide_b"), "--deepspeed_config", pathlib.Path(d) / "none.json"], "none.json", code=2, cwd=d)

# The guide's pipeline: the same losses with one replica, with two, and without stages.
config = config.parent / "pipeline_config.json"
finished = {}
with tempfile.TemporaryDirectory() as d:
    single = pathlib.Path(d) / "alone.json"
    single.write_text(config.read_text().replace('"stages": 2', '"stages": 1'))
    for ranks, file in ((1, single), (2, config), (4, config)):
        r = works(f"guide_b pipeline, {ranks} ranks", [lockstep, "run", "--nproc", ranks, "--", example("guide_b_pipeline"), "--deepspeed_config", file], lambda r: r.stdout.count(": stage 0 of ") == max(1, ranks // 2), cwd=d)
        finished[ranks] = re.findall(r"Step (\d+), Loss: (\S+)", r.stdout)
    check("guide_b pipeline, the same losses", len(finished[1]) == 4 and finished[1] == finished[2] == finished[4] and float(finished[1][3][1]) < float(finished[1][0][1]), str(finished))
    r = run(lockstep, "run", "--nproc", 3, "--", example("guide_b_pipeline"), "--deepspeed_config", config, cwd=d)
    check("guide_b pipeline, on three ranks", r.returncode != 0 and "it is for 2 ranks, and there are 3" in r.stderr, r.stderr)

# The guide's inference: two ranks that share the model print the same as one.
config = config.parent / "inference_config.json"
if example("guide_b_inference").exists():
    said = {}
    with tempfile.TemporaryDirectory() as d:
        single = pathlib.Path(d) / "alone.json"
        single.write_text(config.read_text().replace('"tp_size": 2', '"tp_size": 1'))
        for ranks, file in ((1, single), (2, config), (2, single)):
            r = run(lockstep, "run", "--nproc", ranks, "--", example("guide_b_inference"), "--config", file, cwd=d)
            text = re.sub(r"^\[rank 0\] ", "", r.stdout, flags=re.M)
            losses = [round(float(x), 4) for x in re.findall(r"^step \d, logits \(4, 16, 61\), loss (\S+)$", text, re.M)]
            check(f"guide_b inference, {ranks} ranks", r.returncode == 0 and len(losses) == 3 and f"runs of the model on {ranks} ranks" in text, r.stdout + r.stderr)
            said[ranks, file] = (losses, re.findall(r"^answer .*$", text, re.M))
        check("guide_b inference, the same answers", len(set(map(str, said.values()))) == 1 and len(said[1, single][1]) == 2, str(said))
        r = run(lockstep, "run", "--nproc", 3, "--", example("guide_b_inference"), "--config", config, cwd=d)
        check("guide_b inference, on three ranks", r.returncode != 0 and "needs a multiple of 2 ranks, there are 3" in r.stderr, r.stderr)
        works("guide_b inference, its configuration", [lockstep, "config", "--inference", config], lambda r: "quant.weight.num_bits: no effect, as dtype is not int8" in r.stderr)

# The other guide's model loading on two devices: the place and dtype of each part.
if example("guide_a_device_map").exists():
    for words, dtype in (([], "f32"), (["--load-in-8bit"], "i8"), (["--dtype", "fp16"], "f16")):
        r = run(example("guide_a_device_map"), pathlib.Path(__file__).resolve().parents[1] / "extensions/hugging_face/tests/golden/models/llama_main", *words, LOCKSTEP_CPU_DEVICES="2")
        check(f"guide_a device map {words}", r.returncode == 0 and len(re.findall(rf"^\d+,\tblocks\.\d\.mlp\.up\.\S+\tcpu:[01]\t{dtype}$", r.stdout, re.M)) == 2 and "cpu:1" in r.stdout, r.stdout + r.stderr)

# Programs that somebody wrote from the guides and docs/ alone. Each ends with 0 if its losses fell as far as it expects.
for name, launcher in (("guide_b_checkpoint", []), ("guide_b_fp16_loop", [lockstep, "run", "--nproc", 2, "--"]), ("guide_b_moe", []), ("guide_b_offload", []), ("guide_b_vae", [])):
    if example(name).exists():
        with tempfile.TemporaryDirectory() as d:
            works(name, [*launcher, example(name)], cwd=d, OMP_NUM_THREADS="1")
if example("guide_a_siamese").exists():
    with tempfile.TemporaryDirectory() as d:
        for folder, words in (("whole", ["--epochs", 2]), ("parts", ["--epochs", 1]), ("parts", ["--epochs", 2, "--resume"])):
            r = works(f"guide_a_siamese {folder}", [example("guide_a_siamese"), *words, "--out", folder, "--json"], lambda r: '"val_f1"' in r.stdout, cwd=d)
        whole, parts = ((pathlib.Path(d) / folder / "metrics.jsonl").read_text().splitlines() for folder in ("whole", "parts"))
        check("guide_a_siamese, resumed", len(whole) == len(parts) == 64 and [json.loads(a)["loss"] for a in whole] == [json.loads(b)["loss"] for b in parts], r.stdout)

# Its training with DeepSpeed: starts, and resumes from its checkpoint with another number of ranks.
with tempfile.TemporaryDirectory() as d:
    for ranks, text in ((2, "started, step 24, "), (1, "resumed, step 72, ")):
        works(f"guide_a deepspeed, {ranks} ranks", [lockstep, "run", "--nproc", ranks, "--", example("guide_a_deepspeed"), "--deepspeed", "--deepspeed_config", pathlib.Path(__file__).resolve().parent.parent / "examples/guide_a/deepspeed_config.json"], lambda r: text in r.stdout, cwd=d)

finish()
