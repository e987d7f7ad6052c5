#!/usr/bin/env python3
"""Soak: training on 4 ranks that are repeatedly killed, stopped or paused ends with the bits of an undisturbed run, and
nothing grows: memory and descriptors of ranks over an undisturbed run, and of the launcher over all restarts.

tests/soak.py BUILD_FOLDER          ends with "N passed, N failed"

LOCKSTEP_SOAK_STEPS (1500: half a minute on 2 cores) is the number of steps; LOCKSTEP_SOAK_SEED (1) seeds the faults.
"""
import collections
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import time
import uuid

from programs import APPS, check, environment, finish, saved, workplace

STEPS = int(os.environ.get("LOCKSTEP_SOAK_STEPS", 1500))
SEED = int(os.environ.get("LOCKSTEP_SOAK_SEED", 1))
RANKS, SAVE_EVERY, HEARTBEAT = 4, 20, 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")
MARK = "LOCKSTEP_TEST_MARK"
mark = uuid.uuid4().hex


def processes():
    """Processes with our mark: {pid: rank}, -1 for launchers."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or f"{MARK}={mark}".encode() not in (variables := (entry / "environ").read_bytes()):
                continue
            if (entry / "cmdline").read_bytes():  # no command line: it has ended
                rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", variables)
                found[int(entry.name)] = int(rank[1]) if rank else -1
        except OSError:
            pass
    return found


def use_of(pid):
    """(bytes of memory, open files); None if the process has ended."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE, len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


class Training:
    def __init__(self, folder, restarts, heartbeat):
        self.out, self.metrics, self.samples, self.rounds = folder, folder / "metrics.jsonl", [], 0
        text = folder.parent / "text.txt"
        command = [APPS / "lockstep", "run", "-n", RANKS, "--max-restarts", restarts, "--restart-pause", 0, "--", APPS / "gpt", "train", "--text", text, "--model", "gpt:1x16x2", "--context", 16, "--batch", 2,
                   "--warmup", 5, "--dropout", 0.1, "--set", "zero_optimization.reduce_bucket_size=1310", "--eval-every", 1 << 30, "--steps", STEPS, "--save-every", SAVE_EVERY, "--out", folder, "--json"]
        self.log = open(folder.parent / (folder.name + ".log"), "w+")
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=environment(LOCKSTEP_TIMEOUT="60", LOCKSTEP_HEARTBEAT=str(heartbeat), **{MARK: mark}))

    def step(self):
        """The last step that rank 0 has logged; 0 before the first one."""
        try:
            with open(self.metrics, "rb") as f:
                f.seek(max(0, f.seek(0, os.SEEK_END) - 1000))
                steps = re.findall(rb'"step": ?(\d+)', f.read())
                return int(steps[-1]) if steps else 0
        except OSError:
            return 0

    def sample(self):
        """Records the resources of every process."""
        step = self.step()
        self.rounds += 1
        for pid, rank in processes().items():
            if use := use_of(pid):
                self.samples.append((step, rank, pid, *use))

    def end(self):
        code = self.process.wait(120)
        self.log.seek(0)
        return code, self.log.read()

    def checkpoint(self):
        return saved(self.out)


def check_flat(name, uses):
    """Checks that a process's use does not grow after a quarter of the time."""
    if len(uses) < 12:
        return check(f"{name}: there are samples", False, len(uses))
    quarter = len(uses) // 4
    for what, column in (("memory", 0), ("open files", 1)):
        early, late = (statistics.median(use[column] for use in part) for part in (uses[quarter : 2 * quarter], uses[-quarter:]))
        check(f"{name}: {what} {early:.0f}, then {late:.0f}", late <= early * 1.02)


def calm(folder):
    training = Training(folder, 0, 5)
    while training.process.poll() is None:
        training.sample()
        time.sleep(0.02)  # a fast machine makes all steps in a second
    code, said = training.end()
    check("the calm run", code == 0, said)
    for rank in range(RANKS):
        check_flat(f"rank {rank} of the calm run", [use for step, r, _, *use in training.samples if r == rank and 0 < step < STEPS])
    return training


def chaos(folder):
    """Kills and stops ranks at random steps. Pauses between faults are longer than those between checkpoints."""
    draw = random.Random(SEED)
    training = Training(folder, 1_000_000, HEARTBEAT)
    faults = {"kill": 0, "kill two": 0, "stop": 0, "stop for a moment": 0}
    due, kinds = 0, []
    while training.process.poll() is None:
        training.sample()
        step = training.step()
        if step >= due and step < STEPS - SAVE_EVERY:
            kinds = kinds or draw.sample(sorted(faults), len(faults))  # each kind occurs equally often
            kind, victims = kinds.pop(), draw.sample(range(RANKS), 2)
            pause, moment = draw.randint(SAVE_EVERY, 6 * SAVE_EVERY), draw.uniform(0.05, 2 * HEARTBEAT)
            pids = {rank: pid for pid, rank in processes().items()}
            try:
                for victim in victims[: 1 + (kind == "kill two")]:
                    os.kill(pids[victim], signal.SIGKILL if kind.startswith("kill") else signal.SIGSTOP)
                if kind == "stop for a moment":
                    time.sleep(moment)
                    os.kill(pids[victims[0]], signal.SIGCONT)
                faults[kind] += 1
                due = step + pause
            except (KeyError, ProcessLookupError):  # it is just starting, or has just ended
                kinds.append(kind)
        time.sleep(0.1)
    code, said = training.end()
    print("soak: " + ", ".join(f"{count} x {kind}" for kind, count in faults.items()) + f"; {said.count('starting all ranks again')} restarts", flush=True)
    check("the chaotic run ends well", code == 0, said[-4000:])
    check("it was disturbed", sum(faults.values()) >= STEPS // (20 * SAVE_EVERY) and said.count("starting all ranks again") >= 2, faults)
    # A rank that is just being forked looks like a launcher.
    launchers = {pid: count for pid, count in collections.Counter(pid for _, rank, pid, *_ in training.samples if rank < 0).items() if count > 0.9 * training.rounds}
    check("the launcher and its supervisor live through all restarts", len(launchers) == 2, launchers)
    for pid in launchers:
        check_flat("the launcher", [use for _, _, p, *use in training.samples if p == pid])
    return training


def usual_files(training, rank):
    """The open files of the process that was this rank for the longest time, except the first one if there were others.
    """
    samples = [(pid, files) for step, r, pid, _, files in training.samples if r == rank]
    later = [sample for sample in samples if sample[0] != samples[0][0]] or samples
    longest = statistics.mode(pid for pid, _ in later)
    return statistics.mode(files for pid, files in later if pid == longest)


with workplace(60) as (d, _):
    start = time.monotonic()
    quiet = calm(d / "calm")
    middle = time.monotonic()
    wild = chaos(d / "chaos")
    check("53: killed, stopped and resumed, it ends with the bits of the calm run", quiet.checkpoint() == wild.checkpoint() != [])
    for rank in range(RANKS):
        before_restarts, after = usual_files(quiet, rank), usual_files(wild, rank)
        check(f"rank {rank} inherits no open files by being restarted", after <= before_restarts, (before_restarts, after))
    check("no process is left, and so no socket or shared memory, which have no names", not processes(), processes())
    memory = [statistics.median(use[0] for step, r, _, *use in quiet.samples if r == 0 and lo * STEPS <= step < hi * STEPS) / 2**20 for lo, hi in ((0.25, 0.5), (0.75, 1))]
    print(f"soak: {STEPS} steps on {RANKS} ranks: calm {middle - start:.1f} s, disturbed {time.monotonic() - middle:.1f} s; rank 0 holds {memory[0]:.2f} MiB, then {memory[1]:.2f} MiB")

finish()
