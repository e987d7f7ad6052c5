#!/usr/bin/env python3
"""Predictions of `lockstep simulate --measure` against runs on this machine, alternating. Usage: bench/simulate.py BUILD [--rounds 3]

A row per plan: seconds of a step as predicted and as measured (medians), and how far apart they are.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

PLANS = [("dp1", 1, []), ("dp2", 2, []), ("dp2+zero1", 2, ["--plan", "zero1"]), ("dp2+zero3", 2, ["--plan", "zero3"]), ("pp2", 2, ["--plan", "pp2"])]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    o = parser.parse_args()
    heads, context, batch, accumulate = 4, 128, 4, 4
    lockstep, gpt = o.build / "apps/lockstep", o.build / "apps/gpt"
    predicted, measured = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(chr(97 + i * i * 7 % 26) for i in range(200_000)))
        for _ in range(o.rounds):
            for plan, ranks, options in PLANS:
                answer = run(lockstep, "simulate", "--model", f"gpt:{o.layers}x{o.width}x{heads}", "--vocab", 256, "--context", context, "--micro-batch", batch, "--micro-batches", accumulate,
                             "--ranks-per-host", max(ranks, 1), "--plan", plan, "--measure", "--json")
                predicted.setdefault(plan, []).append(json.loads(answer)["step"])
                trace = pathlib.Path(folder) / f"{plan}-{_}"
                command = [gpt, "train", "--text", text, "--model", f"gpt:{o.layers}x{o.width}x{heads}", "--context", context, "--batch", batch, "--accumulate", accumulate,
                           "--steps", o.steps, "--eval-every", 100000, "--validation", 0.01, "--json", "--trace", trace, *options]
                run(*([lockstep, "run", "-n", ranks, "-q", "--"] if ranks > 1 else []), *command)
                measured.setdefault(plan, []).append(json.loads(run(lockstep, "report", trace, "--json").splitlines()[-1])["step_seconds"])
    print(f"{'plan':<12}{'predicted':>12}{'measured':>12}{'apart':>9}")
    for plan, _, _ in PLANS:
        p, m = statistics.median(predicted[plan]), statistics.median(measured[plan])
        print(f"{plan:<12}{p * 1e3:>9.1f} ms{m * 1e3:>9.1f} ms{100 * (p / m - 1):>+8.1f}%")


if __name__ == "__main__":
    main()
