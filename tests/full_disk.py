#!/usr/bin/env python3
"""A disk that is really full: checkpoints and NVMe offload on a file system of a few hundred KiB.

tests/full_disk.py BUILD_FOLDER          ends with "N passed, N failed"; exit code 77 (skipped) if mounting is not
                                       permitted

The file systems are in a mount namespace, which ends with its processes.
"""
import json
import os
import subprocess
import sys

from leftovers import left_behind
from programs import check, finish, offers, refused, run, saved, workplace, works

INSIDE = "LOCKSTEP_TEST_INSIDE"


def enter():
    """Starts this script again with its own mount namespace, as root of a new user namespace if that is allowed."""
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
    """The names and contents of all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def tests(d, text):
    disk = d / "disk"
    disk.mkdir()

    def resize(kib, mount_options="remount,"):
        subprocess.run(["mount", "-o", f"{mount_options}size={kib}k", "-t", "tmpfs", "none", str(disk)], check=True)

    def used():
        s = os.statvfs(disk)
        return (s.f_blocks - s.f_bfree) * s.f_frsize // 1024

    gpt = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--warmup", 2, "--json"]
    resize(16384, "")

    # A run's last checkpoint is complete, the old or the new one: with one process and with two ranks.
    config = d / "config.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": 1}}))
    shape = gpt[2:gpt.index("--batch")]
    for name, program, room in (("run", gpt, 40), ("engine", ["gpt", "train", "--config", config, *shape, "--json", "--ranks", 2], 60)):
        run(*program, "--steps", 6, "--out", d / name)
        works(f"{name}: calm", [*program, "--steps", 12, "--out", d / name, "--resume"])
        works(f"{name}: the first checkpoint", [*program, "--steps", 6, "--out", disk / name])
        before = files(disk / name / "checkpoints")
        resize(used() + room)  # less than another checkpoint needs
        refused(f"{name}, full disk: the error names the file", [*program, "--steps", 12, "--out", disk / name, "--resume"], f"{name}/checkpoints/", "No space left on device (free space, then save again)")
        now = files(disk / name / "checkpoints")
        check(f"{name}, full disk: the old checkpoint is there, and no half of a new one", now == before, [list(before), list(now)])
        if offers("lockstep", "checkpoint"):
            works(f"{name}, full disk: the old one is whole", ["lockstep", "checkpoint", "verify", disk / name / "checkpoints"])
        resize(16384)
        r = run(*program, "--steps", 12, "--out", disk / name, "--resume")
        check(f"{name}, with space again: the bits of a calm run", r.returncode == 0 and saved(disk / name) == saved(d / name) != [], r.stderr + str(list(files(disk / name / "checkpoints"))))

    # Offload: the file is allocated completely at the start, or the run fails.
    swap = disk / "swap"
    swap.mkdir()
    offload = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--steps", 3, "--json", "--ranks", 2, "--plan", "zero3", "--offload", f"nvme:{swap}"]
    works("offload with space", offload, lambda r: not files(swap))
    kept = used()
    for room in (0, 8, 100):
        resize(kept + room)
        refused(f"offload with {room} KiB: the error names what, the folder, and how much is free", offload, "[offload]", f"{swap}", " are free")
        check(f"offload with {room} KiB: nothing is left", not files(swap) and used() == kept, (list(files(swap)), used(), kept))
    subprocess.run(["umount", str(disk)], check=True)


def main():
    if INSIDE not in os.environ:
        enter()
    with workplace() as (d, text):
        tests(d, text)
        check("nothing is left", not left_behind(d), left_behind(d))
    finish()


main()
