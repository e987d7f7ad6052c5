#!/usr/bin/env python3
"""Folders of whole programs: killed at random file operations, with flipped bytes, and shared by two jobs.

tests/kill_sweep.py BUILD_FOLDER          ends with "N passed, N failed"

In every case, resuming ends with the bits of an undisturbed run or fails with one line that says why.
LOCKSTEP_TEST_SEED (1) seeds the random choices.
"""
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from programs import APPS, OF_A_RANK, check, finish, offers, run, saved, workplace

KILLS, FLIPS = 200, 50
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", 1))
SHIM = APPS.parent / "tests" / "libkill_at.so"
LIMIT = 60
# Programs as users start them; each trains for some steps and saves every second one.
GPT = ["--model", "gpt:1x16x2", "--context", 16, "--batch", 2, "--warmup", 2, "--eval-every", 4, "--eval-batches", 1, "--dropout", 0.1]


def commands(text):
    gpt = ["gpt", "train", "--text", text, *GPT]
    return {"gpt": gpt, "gpt, 2 ranks of zero3": ["lockstep", "run", "-n", 2, "--", APPS / "gpt", *gpt[1:], "--plan", "zero3"],
            "gpt, 2 stages": ["lockstep", "run", "-n", 2, "--", APPS / "gpt", *gpt[1:], "--plan", "pp2", "--accumulate", 2]}


def train(command, out, steps=6, **variables):
    return run(*command, "--steps", steps, "--save-every", 2, "--resume", "--out", out, timeout=LIMIT, OMP_NUM_THREADS="1", **variables)


def one_line(r):
    """A proper error: exit code 1, and a message that is not a crash."""
    return r.returncode == 1 and r.stderr.strip() and "terminate called" not in r.stderr and "std::" not in r.stderr


def side_by_side(case, rows):
    """Runs the cases in parallel, one per core, each in a folder of its own."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [said for said in pool.map(lambda row: case(*row), rows) if said]


def kill_sweep(d, draw, all_commands):
    """Kills runs in empty folders and resumed runs; then the run continues to its end."""
    verifies = offers("lockstep", "checkpoint")
    for name, command in all_commands.items():
        ranks = 2 if "-n" in command else 1
        calm, half, counted = d / "calm", d / "half", d / "count"
        for folder in (calm, half):
            shutil.rmtree(folder, ignore_errors=True)
        r = train(command, calm)
        wanted = saved(calm)
        check(f"{name}: the calm run", r.returncode == 0 and wanted, r.stderr)
        # with the learning rates of the whole run
        check(f"{name}: half of a run", train(command, half, 3).returncode == 0)
        counts = {}
        for start in ("nothing", "half"):
            for rank in range(ranks):
                out = d / "counted"
                shutil.rmtree(out, ignore_errors=True)
                if start == "half":
                    shutil.copytree(half, out)
                r = train(command, out, LD_PRELOAD=str(SHIM), LOCKSTEP_TEST_KILL_FOLDER=str(out), LOCKSTEP_TEST_KILL_COUNT=str(counted), LOCKSTEP_TEST_KILL_RANK=str(rank) if ranks > 1 else "")
                counts[start, rank] = int(counted.read_text()) if counted.exists() else 0
                check(f"{name}: the shim changes nothing", r.returncode == 0 and saved(out) == wanted, r.stderr)
        check(f"{name}: rank 0 changes files", counts["nothing", 0] > 20, counts)

        def killed(i, start, rank, at):
            out = d / f"killed{i}"
            shutil.rmtree(out, ignore_errors=True)
            if start == "half":
                shutil.copytree(half, out)
            r = train(command, out, LD_PRELOAD=str(SHIM), LOCKSTEP_TEST_KILL_FOLDER=str(out), LOCKSTEP_TEST_KILL_AT=str(at), LOCKSTEP_TEST_KILL_RANK=str(rank) if ranks > 1 else "")
            what = f"{name} from {start}, rank {rank} killed at {at} of {counts[start, rank]}"
            if r.returncode == 0:
                return f"{what}: it was not killed"
            if verifies and (out / "checkpoints" / "latest").exists():
                v = run("lockstep", "checkpoint", "verify", out / "checkpoints")
                if v.returncode != 0:
                    return f"{what}: verify: {v.stdout}{v.stderr}"
            r = train(command, out)
            if r.returncode != 0 or saved(out) != wanted:
                return f"{what}: going on: exit {r.returncode}: {r.stderr}"

        where = [draw.choice([key for key, count in counts.items() if count > 0]) for _ in range(KILLS // len(all_commands) + 1)]
        broken = side_by_side(killed, [(i, *key, draw.randint(1, counts[key])) for i, key in enumerate(where)])
        check(f"{name}: killed at random file operations, it goes on to the same bits", not broken, "\n".join(broken[:5]))


def flip_sweep(d, draw, command):
    calm, half = d / "calm", d / "half"
    for folder in (calm, half):
        shutil.rmtree(folder, ignore_errors=True)
    train(command, calm)
    train(command, half, 3)
    wanted, ends = saved(calm), {"same": 0, "refused": 0}
    files = sorted(p.relative_to(half) for p in half.rglob("*") if p.is_file() and p.stat().st_size)

    def flipped(i, file, at, bit):
        out = d / f"flipped{i}"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(half, out)
        data = bytearray((out / file).read_bytes())
        data[at] ^= 1 << bit
        (out / file).write_bytes(data)
        r = train(command, out)
        if not (r.returncode == 0 and saved(out) == wanted) and not one_line(r):
            return f"{file}, byte {at}: exit {r.returncode}: {r.stderr}"
        ends["same" if r.returncode == 0 else "refused"] += 1

    # every file in turn, so that large files are not chosen more often
    by_rotation = [files[i % len(files)] for i in range(FLIPS)]
    broken = side_by_side(flipped, [(i, file, draw.randrange((half / file).stat().st_size), draw.randrange(8)) for i, file in enumerate(by_rotation)])
    check("flipped bytes: the same bits, or an error that says why", not broken, "\n".join(broken[:5]))
    check("flipped bytes: some runs go on, some are refused", all(ends.values()), ends)


def two_jobs(d, command):
    """The second job is rejected while the first one runs, and changes nothing."""
    calm, out = d / "calm", d / "shared"
    for folder in (calm, out):
        shutil.rmtree(folder, ignore_errors=True)
    train(command, calm, 40)
    env = {k: v for k, v in os.environ.items() if k not in OF_A_RANK}
    words = [APPS / command[0], *command[1:], "--steps", 40, "--save-every", 2, "--resume", "--out", out]
    first = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**env, "OMP_NUM_THREADS": "1"})
    until = time.monotonic() + LIMIT
    while not (out / "config.json").exists() and time.monotonic() < until:
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)  # keeps it alive for as long as this test needs
    for resume in (["--resume"], []):
        r = run(*command, "--steps", 40, "--save-every", 2, *resume, "--out", out, timeout=LIMIT)
        check("a second job is refused and says why" + f" {resume}", one_line(r) and str(out) in r.stderr, f"exit {r.returncode}: {r.stderr}")
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=LIMIT)
    check("the first job ends as if it had been alone", first.returncode == 0 and saved(out) == saved(calm), said)


def main():
    draw = random.Random(SEED)
    with workplace() as (d, text):
        all_commands = commands(text)
        kill_sweep(d, draw, all_commands)
        flip_sweep(d, draw, all_commands["gpt"])
        two_jobs(d, all_commands["gpt"])
    finish()


if __name__ == "__main__":
    sys.exit(main())
