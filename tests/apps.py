#!/usr/bin/env python3
"""The programs as a user meets them: help, wrong options, bad files, resuming with the same bits, Ctrl-C.

    tests/apps.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

APPS = pathlib.Path(sys.argv[1]).resolve() / "apps"
passed = failed = 0


def check(name, condition, shown=""):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    if not condition:
        print(f"FAIL {name}\n{shown}")


def run(*args, **kw):
    return subprocess.run([str(APPS / args[0]), *map(str, args[1:])], capture_output=True, text=True, errors="replace", timeout=300, **kw)


def refused(name, args, *parts, code=1):
    r = run(*args)
    check(name, r.returncode == code and all(p in r.stderr for p in parts), f"exit {r.returncode}: {r.stderr}{r.stdout}")


def result(r):
    return json.loads(r.stdout.strip().splitlines()[-1])


with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    tiny = ["--text", text, "--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]

    for app, words in (("gpt", ["train", "sample", "eval"]), ("mlp", ["train", "eval"]), ("cnn", ["train", "eval"])):
        r = run(app, "--help")
        check(f"{app} --help", r.returncode == 0 and all(w in r.stdout for w in words), r.stdout + r.stderr)
        r = run(app, "train", "--help")
        check(f"{app} train --help", r.returncode == 0 and "--seed" in r.stdout, r.stdout + r.stderr)

    refused("misspelt option", ["gpt", "train", "--steps", 3, "--widht", 3], "--widht", "did you mean --width?", code=2)
    refused("misspelt command", ["mlp", "trian"], "did you mean train?", code=2)
    refused("no command", ["mlp"], "--help", code=2)
    refused("word for a number", ["gpt", "train", "--steps", "many"], "--steps", code=2)
    refused("missing text", ["gpt", "train", "--text", d / "none.txt"], "none.txt")
    refused("short text", ["gpt", "train", "--text", text, "--context", 5000], "too few")
    refused("sizes beside --init", ["gpt", "train", "--text", text, "--init", d, "--layers", 2], "--layers excludes --init", code=2)
    refused("bad heads", ["gpt", "train", "--text", text, "--width", 30, "--heads", 4, "--steps", 1], "heads")
    refused("bad betas", ["gpt", "train", "--text", text, "--betas", "0.9,1.5", "--steps", 1], "beta2")
    refused("missing data", ["mlp", "train", "--data", d / "nowhere"], "nowhere", "'digits'")
    refused("empty data folder", ["cnn", "train", "--data", d], "train-images-idx3-ubyte")
    refused("resume without a folder", ["mlp", "train", "--resume"], "--out")
    refused("missing model", ["gpt", "sample", d / "none"], "no such file or folder")
    (d / "broken").mkdir()
    (d / "broken/config.json").write_text('{"program": "gpt", "vocab": 256,}')
    (d / "broken/checkpoint.safetensors").write_bytes(b"\xff" * 100)
    refused("broken config", ["gpt", "sample", d / "broken"], "config.json:1:")
    refused("broken checkpoint", ["mlp", "eval", d / "broken"], "checkpoint.safetensors")

    # A run that stops and goes on ends with the same bits as one that does not stop.
    def checkpoint(name):
        return hashlib.sha256((d / name / "checkpoint.safetensors").read_bytes()).hexdigest()

    whole = run("gpt", "train", *tiny, "--steps", 30, "--out", d / "whole")
    check("gpt train", whole.returncode == 0 and result(whole)["steps"] == 30, whole.stderr)
    check("metrics", len((d / "whole/metrics.jsonl").read_text().splitlines()) == 30)
    refused("folder in use", ["gpt", "train", *tiny, "--steps", 30, "--out", d / "whole"], "--resume")
    process = subprocess.Popen([str(APPS / "gpt"), "train", *map(str, tiny), "--steps", "100000", "--out", str(d / "stopped")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not ((d / "stopped/metrics.jsonl").exists() and (d / "stopped/metrics.jsonl").read_text().count("\n") >= 3) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    check("Ctrl-C saves and stops", process.returncode == 0 and "--resume" in err and (d / "stopped/checkpoint.safetensors").exists(), err)
    # (Its schedule is that of 100,000 steps; the one to compare is stopped by --save-every and killed.)
    process = subprocess.Popen([str(APPS / "gpt"), "train", *map(str, tiny), "--steps", "30", "--save-every", "7", "--out", str(d / "killed")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (d / "killed/checkpoint.safetensors").exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    resumed = run("gpt", "train", *tiny, "--steps", 30, "--out", d / "killed", "--resume")
    check("resume after kill -9", resumed.returncode == 0 and checkpoint("killed") == checkpoint("whole"), resumed.stderr)
    other = run("gpt", "train", *[2 if i == tiny.index("--layers") + 1 else a for i, a in enumerate(tiny)], "--steps", 30, "--out", d / "killed", "--resume")
    check("resume of another model is refused", other.returncode == 1 and "layers" in other.stderr, other.stderr)
    threads = run("gpt", "train", *tiny, "--steps", 30, "--out", d / "one", "--threads", 1)
    check("one thread gives the same bits", threads.returncode == 0 and checkpoint("one") == checkpoint("whole"), threads.stderr)

    sample = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50)
    check("sample", sample.returncode == 0 and sample.stdout.startswith("the ") and len(sample.stdout) >= 54, sample.stderr)
    as_json = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50, "--json")
    check("sample --json", as_json.returncode == 0 and len(result(as_json)["text"]) > 0, as_json.stdout + as_json.stderr)
    again = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50)
    check("a seed gives one text", again.stdout == sample.stdout)
    for precision in ("bf16", "f16"):
        low = run("gpt", "train", *tiny, "--steps", 20, "--precision", precision)
        check(f"train in {precision}", low.returncode == 0 and result(low)["loss"] < 6, low.stdout + low.stderr)
    exported = run("gpt", "train", *tiny, "--steps", 2, "--export", d / "hf")
    evaluated = run("gpt", "eval", d / "hf", "--text", text, "--json")
    tuned = run("gpt", "train", "--text", text, "--init", d / "hf", "--batch", 4, "--steps", 3, "--checkpoint-blocks", "--json")
    check("fine-tuning a folder", tuned.returncode == 0 and result(tuned)["steps"] == 3, tuned.stderr)
    check("export and eval", exported.returncode == 0 and evaluated.returncode == 0 and 0 < result(evaluated)["loss"] < 10, exported.stderr + evaluated.stderr)

    mlp = ["--epochs", 2, "--samples", 600, "--json", "--seed", 3]
    whole = run("mlp", "train", *mlp, "--out", d / "mlp")
    check("mlp train", whole.returncode == 0 and result(whole)["test_accuracy"] > 0.5, whole.stderr)
    half = run("mlp", "train", "--epochs", 1, *mlp[2:], "--out", d / "half")
    rest = run("mlp", "train", *mlp, "--out", d / "half", "--resume")
    check("mlp resume", rest.returncode == 0 and checkpoint("half") == checkpoint("mlp"), half.stderr + rest.stderr)
    tested = run("mlp", "eval", d / "mlp", "--samples", 600, "--json", "--seed", 3)
    check("mlp eval", tested.returncode == 0 and result(tested)["test_accuracy"] == result(whole)["test_accuracy"], tested.stderr)

    r = subprocess.run(["sh", "-c", f"ulimit -f 8; exec {APPS}/mlp train --epochs 1 --samples 300 --out {d}/small --json"], capture_output=True, text=True)
    check("a file that cannot be written whole is not left broken", r.returncode != 0 and not (d / "small/checkpoint.safetensors").exists(), r.stderr)

print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
