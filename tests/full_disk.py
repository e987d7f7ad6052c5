#!/usr/bin/env python3
"""A disk that is really full: checkpoints and NVMe offload on a file system of a few hundred KiB.

    tests/full_disk.py BUILD_FOLDER          ends with "N passed, N failed"; exit code 77 (skipped) where mounting is not permitted

The file systems are in a mount namespace, and end with the processes in it.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from leftovers import left_behind
from programs import check, finish, run

INSIDE = "LOCKSTEP_TEST_INSIDE"


def enter():
    """Starts this script again with mounts of its own, as the root of a new user namespace where that is allowed."""
    why = ""
    for flags in ("-Urm", "-m"):
        try:
            tried = subprocess.run(["unshare", flags, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"], capture_output=True, text=True)
        except FileNotFoundError:
            why = why or "there is no unshare (util-linux)"
            break
        if tried.returncode == 0:
            os.execvpe("unshare", ["unshare", flags, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
        why = why or tried.stderr.strip()
    print(f"skipped: mounting is not permitted here: {why}")
    sys.exit(77)


def files(folder):
    """Of a folder and all below: names and contents."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def tensors(folder):
    """The data of a checkpoint's files, without their headers, which name the run."""
    return {name: data[8 + int.from_bytes(data[:8], "little"):] for name, data in files(folder).items() if name.endswith(".safetensors")}


def tests(d):
    disk = d / "disk"
    disk.mkdir()

    def resize(kib, how="remount,"):
        subprocess.run(["mount", "-o", f"{how}size={kib}k", "-t", "tmpfs", "none", str(disk)], check=True)

    def used():
        s = os.statvfs(disk)
        return (s.f_blocks - s.f_bfree) * s.f_frsize // 1024

    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    gpt = ["gpt", "train", "--text", text, "--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--batch", 2, "--warmup", 2, "--json"]
    resize(16384, "")

    # A run's checkpoint: the file is whole or the old one.
    run(*gpt, "--steps", 6, "--out", d / "calm")
    calm = run(*gpt, "--steps", 12, "--out", d / "calm", "--resume")
    check("a calm run", calm.returncode == 0, calm.stderr)
    first = run(*gpt, "--steps", 6, "--out", disk / "run")
    check("the first checkpoint", first.returncode == 0, first.stderr)
    before = files(disk)
    resize(used() + 40)  # less than another one
    r = run(*gpt, "--steps", 12, "--out", disk / "run", "--resume")
    check("full disk: the error names the file", r.returncode == 1 and "checkpoint.safetensors" in r.stderr and "No space left on device (free space, then save again)" in r.stderr, f"{r.returncode}: {r.stderr}")
    now = files(disk)
    check("full disk: the old checkpoint is there, and no half of a new one", now.keys() == before.keys() and now["run/checkpoint.safetensors"] == before["run/checkpoint.safetensors"], list(now))
    resize(16384)
    r = run(*gpt, "--steps", 12, "--out", disk / "run", "--resume")
    check("with space again: it goes on, to the bits of a calm run", r.returncode == 0 and (disk / "run/checkpoint.safetensors").read_bytes() == (d / "calm/checkpoint.safetensors").read_bytes(), r.stderr)

    # The engine's checkpoints, of two ranks.
    config = d / "config.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 1}}))
    gpt = [*gpt[:2], "--config", config, "--text", text, "--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--json", "--ranks", 2]
    run(*gpt, "--steps", 6, "--out", d / "calm2")
    calm = run(*gpt, "--steps", 12, "--out", d / "calm2", "--resume")
    check("a calm run of an engine", calm.returncode == 0, calm.stderr)
    first = run(*gpt, "--steps", 6, "--out", disk / "engine")
    check("the engine's first checkpoint", first.returncode == 0, first.stderr)
    before = files(disk / "engine/checkpoints")
    resize(used() + 60)
    r = run(*gpt, "--steps", 12, "--out", disk / "engine", "--resume")
    check("full disk, engine: the error names the file", r.returncode == 1 and "engine/checkpoints/" in r.stderr and "No space left on device (free space, then save again)" in r.stderr, f"{r.returncode}: {r.stderr}")
    now = files(disk / "engine/checkpoints")
    check("full disk, engine: the old checkpoint is there, and no half of a new one", now == before, [list(before), list(now)])
    v = run("lockstep", "checkpoint", "verify", disk / "engine/checkpoints")
    check("full disk, engine: the old one is whole", v.returncode == 0, v.stdout + v.stderr)
    resize(16384)
    r = run(*gpt, "--steps", 12, "--out", disk / "engine", "--resume")
    check("with space again, engine: the bits of a calm run", r.returncode == 0 and tensors(disk / "engine/checkpoints/global_step12") == tensors(d / "calm2/checkpoints/global_step12") != {}, r.stderr + str(list(files(disk / "engine/checkpoints"))))

    # Offload: the file is made whole at the start, or not at all.
    swap = disk / "swap"
    swap.mkdir()
    offload = ["gpt", "train", "--text", text, "--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--batch", 2, "--steps", 3, "--json", "--ranks", 2, "--zero", 3, "--offload", f"nvme:{swap}"]
    calm = run(*offload)
    check("offload with space", calm.returncode == 0 and not files(swap), calm.stderr)
    kept = used()
    for room in (0, 8, 100):
        resize(kept + room)
        r = run(*offload)
        check(f"offload with {room} KiB: the error names what, the folder, and how much is free", r.returncode == 1 and "[offload]" in r.stderr and f"{swap}" in r.stderr and " are free" in r.stderr, f"{r.returncode}: {r.stderr}")
        check(f"offload with {room} KiB: nothing is left", not files(swap) and used() == kept, (list(files(swap)), used(), kept))
    subprocess.run(["umount", str(disk)], check=True)


def main():
    if INSIDE not in os.environ:
        enter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder  # for what launchers keep of runs that fail
        tests(pathlib.Path(folder))
        check("nothing is left", not left_behind(folder), left_behind(folder))
    finish()


main()
