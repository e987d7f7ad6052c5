#!/usr/bin/env python3
"""Two builds of the programs in alternating runs: time and memory of the second as a part of the first's.

Usage: before.py OLD_BUILD NEW_BUILD [--runs 5] [--only NAME ...]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time


def gpt(sizes, context, batch, steps, *more):
    return ["gpt", "train", "--eval-every", 10**6, "--eval-batches", 1, "--json", "--model", sizes, "--context", context, "--batch", batch, "--steps", steps, *more]


CASES = {  # ranks, words
    "GPT tiny": (1, gpt("gpt:2x64x2", 64, 8, 400)),
    "GPT small": (1, gpt("gpt:6x384x6", 256, 4, 10)),
    "GPT small, DDP on 2 ranks": (2, gpt("gpt:6x384x6", 256, 2, 10)),
    "GPT small, ZeRO 3 on 2 ranks": (2, gpt("gpt:6x384x6", 256, 2, 10, "--plan", "zero3")),
    "GPT small, 2 stages": (2, gpt("gpt:6x384x6", 256, 1, 10, "--plan", "pp2", "--accumulate", 4)),
    "MLP": (1, ["mlp", "train", "--epochs", 2, "--samples", 8000, "--json"]),
    "LeNet": (1, ["cnn", "train", "--epochs", 1, "--samples", 4000, "--json"]),
    "start of 4 ranks": (4, gpt("gpt:2x64x2", 64, 1, 1)),
}


def run(build, ranks, words, text):
    """Seconds of a unit of work, or of the whole when it is only the start; and MiB."""
    apps = pathlib.Path(build).resolve() / "apps"
    words = [*words, "--text", text] if words[0] == "gpt" else words
    launcher = [apps / "lockstep", "run", "-n", ranks, "-q", "--log-line-prefix-template", "", "--"] if ranks > 1 else []
    begin = time.perf_counter()
    done = subprocess.run([str(w) for w in (*launcher, apps / words[0], *words[1:])], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    rate = next(value for name, value in result.items() if name.endswith("_per_second"))
    return (seconds if result["steps"] == 1 else 1 / rate), result["peak_memory_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old"), parser.add_argument("new")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    o = parser.parse_args()
    print(f"{'':<32}{'time':>8}{'memory':>8}")
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(chr(97 + i * i * 7 % 26) for i in range(300_000)))
        for name in o.only:
            timings = {o.old: [], o.new: []}
            for i in range(o.runs):
                for build in (o.old, o.new) if i % 2 == 0 else (o.new, o.old):
                    timings[build].append(run(build, *CASES[name], text))
            ratio = [statistics.median(r[k] for r in timings[o.new]) / statistics.median(r[k] for r in timings[o.old]) for k in (0, 1)]
            print(f"{name:<32}{ratio[0]:>8.3f}{ratio[1]:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
