#!/usr/bin/env python3
"""The example programs print what their readers expect.

    tests/examples.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import os
import pathlib
import re
import subprocess
import sys

from checks import check, finish

BUILD = pathlib.Path(sys.argv[1]).resolve()


def run(*command, **variables):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, env={**env, **variables})


def example(name):
    return BUILD / "examples" / name


# DataParallel: batches of 30, 30, 30 and 10 rows, cut over the devices.
for devices, pieces in (("1", {30: [30], 10: [10]}), ("2", {30: [15, 15], 10: [5, 5]}), ("3", {30: [10, 10, 10], 10: [4, 4, 2]}), ("8", {30: [4] * 7 + [2], 10: [2] * 5})):
    r = run(example("data_parallel"), LOCKSTEP_CPU_DEVICES=devices)
    check(f"data_parallel, {devices} devices, ends well", r.returncode == 0 and "warning" not in r.stderr, r.stdout + r.stderr)
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
    check(f"LOCKSTEP_CPU_DEVICES={bad}", r.returncode != 0 and f'expected LOCKSTEP_CPU_DEVICES to be a number from 1 to 64, got "{bad}"' in r.stderr, r.stderr)

one, two = run(example("model_parallel")), run(example("model_parallel"), LOCKSTEP_CPU_DEVICES="2")
losses = [re.findall(r"step \d loss (\S+)", r.stdout) for r in (one, two)]
check("model_parallel", one.returncode == 0 and two.returncode == 0 and len(losses[0]) == 3 and losses[0] == losses[1], one.stdout + two.stdout + two.stderr)
check("model_parallel, places", "net2.weight\t(5, 10)\tcpu:1" in two.stdout and "net1.weight\t(10, 10000)\tcpu:0" in two.stdout, two.stdout)
check("model_parallel, label elsewhere", re.search(r"expected one device, got \(20, 5\) on cpu:1 and \(20, 5\) on cpu:0", two.stdout), two.stdout)

# DDP: started by itself, or by the launcher. 2048 samples in batches of 32 are 64 steps of one rank, 32 of each of two.
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

finish()
