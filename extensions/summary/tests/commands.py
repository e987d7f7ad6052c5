#!/usr/bin/env python3
"""`lockstep top` beside a training of two ranks, and curves of programs.

commands.py BUILD          ends with "N passed, N failed"
"""
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, began, check, environment, finish, refused, settle, works, workplace  # noqa: E402


def records(folder):
    """The TFRecords of all event files in a folder."""
    found = []
    for path in folder.glob("events.out.tfevents.*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            size = struct.unpack_from("<Q", content, at)[0]
            found.append(content[at + 12:at + 12 + size])
            at += size + 16
    return found


def watched(d, text):
    """Watches a run of two ranks until it is stopped."""
    run = d / "run"
    train = subprocess.Popen([str(APPS / "gpt"), "train", "--text", str(text), "--model", "gpt:1x32x2", "--context", "32", "--batch", "2", "--ranks", "2", "--steps", "1000000", "--out", str(run)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    top = None
    try:
        check("the run has begun", settle(lambda: began(run)), "")
        r = works("--once, while it runs", ["lockstep", "top", run, "--once"], lambda r: "running: pid" in r.stdout and "loss" in r.stdout)
        check("no escape codes in a pipe", "\033" not in r.stdout, r.stdout)
        top = subprocess.Popen([str(APPS / "lockstep"), "top", str(run), "--interval", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        time.sleep(2.5)
        check("it watches while the run goes on", top.poll() is None and train.poll() is None)
        train.send_signal(signal.SIGINT)
        train.wait(timeout=60)
        out, err = top.communicate(timeout=60)
    finally:
        for process in (train, top):
            if process and process.poll() is None:
                process.kill()
                process.wait()
    check("it ends with the run", top.returncode == 0 and err == "", f"exit {top.returncode}: {out}{err}")
    steps = [int(step) for step in re.findall(r"^step (\d+)/1000000", out, re.M)]
    check("its lines follow the steps", len(steps) >= 3 and steps == sorted(steps), out)
    check("speed and time left", re.search(r" left  loss .* steps/s  \d+ tokens/s  memory ", out), out)
    check("at the end the table, with both ranks", "  ended\n" in out and re.search(r"^   0  .*%.*%.* ago\n   1  .*%.*%.* ago\n\Z", out, re.M), out)
    works("--once, after its end", ["lockstep", "top", run, "--once"], lambda r: "  ended\n" in r.stdout and "left" not in r.stdout)


with workplace() as (d, text):
    watched(d, text)
    digits = ["mlp", "train", "--samples", 64, "--batch", 8, "--epochs", 2, "--json"]
    for ranks, steps in ((1, 16), (2, 8)):
        curves = d / f"curves of {ranks}"
        works(f"curves of {ranks} ranks", [*digits, "--ranks", ranks, "--set", f"summary.folder={curves}"])
        found = records(curves)
        check(f"{ranks} ranks: one writes a file", len(list(curves.iterdir())) == 1, list(curves.iterdir()))
        for tag, count in (("train/loss", steps), ("train/lr", steps), ("train/grad_norm", steps), ("/accuracy", 2)):
            check(f"{ranks} ranks: {count} points of {tag}", sum(tag.encode() in one for one in found) == count, found)
    refused("no place for curves", [*digits, "--set", f"summary.folder={text / 'below'}"], "cannot make this folder")
    refused("top without a run", ["lockstep", "top", d / "none"], "expected the folder of a run (--out)", "no such folder")
    refused("top of another folder", ["lockstep", "top", d], "a folder without them")
    refused("top without a pause", ["lockstep", "top", d / "run", "--interval", 0], "--interval", code=2)
finish()
