#!/usr/bin/env python3
"""Errors of programs on bad data and bad options, alone and on two ranks: one message that says what was expected,
without delay, on all ranks.

tests/faults.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import ctypes
import os
import struct
import subprocess
import time

from leftovers import left_behind
from programs import APPS, began, check, environment, finish, offers, saved, workplace

ENVIRONMENT = environment(LOCKSTEP_TIMEOUT="60")


def run(ranks, program, *args, **kw):
    launcher = [APPS / "lockstep", "run", "-q", "-n", ranks, "--"] if ranks > 1 else []
    return subprocess.run([str(word) for word in (*launcher, APPS / program, *args)], capture_output=True, text=True, errors="replace", timeout=120, env=ENVIRONMENT, **kw)


def refused(name, code, args, *parts, ranks=(1, 2), **kw):
    for n in ranks:
        start = time.monotonic()
        r = run(n, *args, **kw)
        said = [line for line in r.stderr.splitlines() if "error: " in line]
        check(f"{name}, {n} ranks", r.returncode == code and len(said) >= 1 and all(part in line for part in parts for line in said), f"exit {r.returncode}: {r.stdout}{r.stderr}")
        check(f"{name}, {n} ranks: soon", time.monotonic() - start < 20, time.monotonic() - start)


def obey_permissions():
    """Drops root's right to read any file: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def idx(shape, data):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(data)


with workplace() as (d, _):
    ENVIRONMENT["TMPDIR"] = str(d)
    (d / "text.txt").rename(d / "text")
    (d / "empty").write_text("")
    (d / "short").write_text("short " * 10)
    (d / "folder").mkdir()
    (d / "secret").write_text("x" * 10000)
    gpt = ["gpt", "train", "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--warmup", 5, "--json"]
    mnist = {"train-images-idx3-ubyte": idx((40, 8, 8), (i % 251 for i in range(40 * 64))), "train-labels-idx1-ubyte": idx((40,), (i % 10 for i in range(40))),
             "t10k-images-idx3-ubyte": idx((10, 8, 8), (i % 251 for i in range(10 * 64))), "t10k-labels-idx1-ubyte": idx((10,), (i % 10 for i in range(10)))}

    def images(name, **changed):
        """A folder with the files of MNIST, some of them changed: other bytes, "folder", or None if missing."""
        (d / name).mkdir()
        for file, data in {**mnist, **{key.replace("_", "-"): value for key, value in changed.items()}}.items():
            if data == "folder":
                (d / name / file).mkdir()
            elif data is not None:
                (d / name / file).write_bytes(data)
        return ["mlp", "train", "--data", d / name, "--batch", 4, "--epochs", 1, "--json"]

    # 42: data files that are missing, empty, truncated or folders
    for name, text, parts in (
        ("missing", d / "none", ["cannot open", "none: No such file"]),
        ("empty", d / "empty", ["empty has 0 tokens", "training and validation each need at least 33", "a shorter context"]),
        ("short", d / "short", ["short has 60 tokens", "training and validation each need at least 33"]),
        ("a folder", d / "folder", ["expected a regular file, got a folder", "folder"]),
        ("a device", "/dev/zero", ["expected a regular file, got a device or pipe: /dev/zero"]),
    ):
        refused(f"42: text: {name}", 1, [*gpt, "--text", text], *parts)
    check("42: images: whole", run(2, *images("whole")).returncode == 0)
    cut = mnist["train-images-idx3-ubyte"][:-100]
    for name, args, parts in (
        ("missing", ["mlp", "train", "--data", d / "none"], ["none", "'digits'"]),
        ("a file", ["mlp", "train", "--data", d / "text"], ["text", "a folder"]),
        ("one file missing", images("one_missing", t10k_labels_idx1_ubyte=None), ["t10k-labels-idx1-ubyte", "one_missing", "found neither"]),
        ("empty", images("nothing", train_images_idx3_ubyte=b""), ["train-images-idx3-ubyte", "expected a header, got fewer than 4 bytes"]),
        ("short", images("cut", train_images_idx3_ubyte=cut), ["train-images-idx3-ubyte", "expected 2560 bytes", "(40, 8, 8)", "is the file truncated?"]),
        ("long", images("long", train_labels_idx1_ubyte=mnist["train-labels-idx1-ubyte"] + b"1"), ["train-labels-idx1-ubyte", "got more"]),
        ("labels of fewer", images("fewer", train_labels_idx1_ubyte=idx((39,), [1] * 39)), ["train-labels-idx1-ubyte", "expected 40 labels, one for each image, got 39"]),
        ("a folder", images("nested", train_images_idx3_ubyte="folder"), ["train-images-idx3-ubyte", "got a folder"]),
    ):
        refused(f"42: images: {name}", 1, args, *parts)
    (d / "secret").chmod(0)
    refused("42: text: unreadable", 1, [*gpt, "--text", d / "secret"], "cannot open", "secret: Permission denied", preexec_fn=obey_permissions, ranks=[1])
    # All data is read before the first step, so later changes of the file have no effect.
    changing = d / "changing"
    results = []
    for change in (None, lambda: os.truncate(changing, 0), changing.unlink):
        changing.write_text((d / "text").read_text())
        out = d / f"changing{len(results)}"
        process = subprocess.Popen([str(w) for w in (APPS / "lockstep", "run", "-q", "-n", 2, "--", APPS / gpt[0], *gpt[1:], "--text", changing, "--steps", 60, "--out", out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        while process.poll() is None and not began(out, 2):
            time.sleep(0.005)
        if change:
            change()
        said = process.communicate(timeout=120)
        check(f"42: text that changes during the run, {len(results)}", process.returncode == 0, said)
        results.append(saved(out) if process.returncode == 0 else said)
    check("42: a text that changes or goes away during the run changes nothing", results[0] == results[1] == results[2] != [])
    # Two hosts, one with an outdated copy: ranks start in different folders and read the same relative path.
    for k in (0, 1):
        (d / f"host{k}").mkdir()
        (d / f"host{k}/text").write_text("the quick brown fox jumps over the lazy dog. " * 200 + str(k))
    apart = ["lockstep", "run", "-q", "-n", 2, "--", "sh", "-c", f'cd {d}/host$RANK && exec "$@"', "sh", APPS / gpt[0], *gpt[1:], "--text", "text", "--steps", 3]
    refused("42: ranks with different data", 1, apart, "text: ranks 0 and 1 hold different data, 9001 elements", "give every host the same files", ranks=[1])

    # 43: sizes that do not divide: the rest of an epoch is dropped, the same on all ranks
    for samples in (41, 47, 48):
        r = run(3, "mlp", "train", "--samples", samples, "--batch", 4, "--epochs", 2, "--json")
        check(f"43: {samples} samples over 3 ranks", r.returncode == 0 and f'"steps": {samples // 12 * 2},' in r.stdout, r.stdout + r.stderr)
    refused("43: fewer samples than a step takes", 1, ["mlp", "train", "--samples", 11, "--batch", 4], "at least train_batch_size 12 samples", "got 11", ranks=[3])

    # 44: options
    ok = [*gpt, "--text", d / "text", "--steps", 2]
    for words, parts in (
        (["--stesp", 3], ["--stesp", "did you mean --steps?"]),
        (["--lr", "fast"], ["--lr: expected a number from 0 to 1e+06, got 'fast'"]),
        (["--lr", "nan"], ["--lr: expected a number", "'nan'"]),
        (["--lr", -1], ["--lr: expected a number", "'-1'"]),
        (["--optimizer", "adamw,weight_decay=inf"], ["--optimizer: weight_decay"]),
        (["--warmup", 1.5], ["--warmup: expected a whole number from 0 to 1000000000000, got '1.5'"]),
        (["--save-every", -1], ["--save-every: expected a whole number from 0"]),
        (["--accumulate", 0], ["--accumulate: expected a whole number from 1 to 1048576, got '0'"]),
        (["--accumulate", "99999999999999999999"], ["--accumulate: expected a whole number"]),
        (["--eval-batches", "0x10"], ["--eval-batches: expected a whole number"]),
        (["--seed", -1], ["--seed: expected a whole number from 0"]),
        (["--threads", 0], ["--threads: expected a whole number from 1 to 4096, got '0'"]),
        (["--precision", "f8"], ["--precision", "f8 not in {auto, f32, tf32, bf16, f16"]),
        (["--parallel", "zero"], ["--parallel", "zero not in"]),
        *[(["--init", d, "--model", "gpt:2x128x4"], ["--init excludes --model"])] * offers("gpt", "train", "--init"),
        (["--steps", 3], ["--steps: At Most 1 required but received 2"]),
    ):
        refused(f"44: {' '.join(map(str, words))}", 2, [*[w for w in ok if w not in ("--model", "gpt:1x128x4") or "--init" not in words], *words], *parts)
    refused("44: two ways to make ranks", 2, [*ok, "--ranks", 2], "--ranks or lockstep run, not both", ranks=[2])
    for variable, value, part in (("LOCKSTEP_TRANSPORT", "pigeon", "expected LOCKSTEP_TRANSPORT to be auto, threads, shm or tcp"), ("LOCKSTEP_HEARTBEAT", "soon", "LOCKSTEP_HEARTBEAT"), ("LOCKSTEP_ALGORITHM", "rnig", "did you mean ring"), ("LOCKSTEP_TIMEUOT", "9", "no variable LOCKSTEP_TIMEUOT; did you mean LOCKSTEP_TIMEOUT?"), ("LOCKSTEP_THREADS", "two", "LOCKSTEP_THREADS to be a number from 1 to 4096, got 'two'"),
                                  ("LOCKSTEP_NCCL_EXACT", "yes", "to be 0 or 1, got 'yes'"),
                                  ("LOCKSTEP_TIMEOUT", "-1", "expected LOCKSTEP_TIMEOUT to be a number of seconds"), ("LOCKSTEP_INTERFACE", "nosuch0", "expected a network interface or subnet of this machine, got 'nosuch0'")):
        r = subprocess.run([str(w) for w in (APPS / "lockstep", "run", "-q", "-n", 2, "--", APPS / ok[0], *ok[1:])], capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, variable: value})
        check(f"44: {variable}={value}", r.returncode == (1 if value == "nosuch0" else 2) and part in r.stderr, f"exit {r.returncode}: {r.stderr}")
    check("nothing is left", not left_behind(d), left_behind(d))

finish()
