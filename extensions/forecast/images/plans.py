#!/usr/bin/env python3
"""Draws simulate_plans.svg from `lockstep simulate --json`. Run it after a change there: python3 extensions/forecast/images/plans.py build/apps/lockstep"""
import json
import math
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
INK, SOFT, GRID = "#24292f", "#57606a", "#e8ebef"
FLOPS, BATCH = 1.5e14, 1536  # of a rank; sequences of a step
FAMILIES = [("ZeRO 3", 1, 1, "zero3", "#4c8dd6"), ("tp8, ZeRO 3", 8, 1, "zero3", "#3aa675"), ("tp8, pp8, ZeRO 1", 8, 8, "zero1", "#c9822b"), ("tp8, pp16, ZeRO 1", 8, 16, "zero1", "#8e6bc4")]
RANKS = [64, 128, 256, 512, 1024, 2048, 4096]


def ask(lockstep, ranks, tp, pp, zero):
    """Part of the ranks' FLOP/s that the model gets, or None where the plan cannot be."""
    dp = ranks // tp // pp
    if dp < 1 or BATCH % dp:
        return None
    command = [lockstep, "simulate", "--model", "gpt:96x12288x96", "--context", 2048, "--plan", f"dp{dp}+tp{tp}+pp{pp}+{zero}", "--micro-batches", BATCH // dp, "--dtype", "bf16", "--flops", FLOPS,
               "--memory-bandwidth", 1.5e12, "--bandwidth", "25GB/s", "--latency", "5us", "--host-bandwidth", "300GB/s", "--host-latency", "2us", "--json"]
    out = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if out.returncode:
        return None
    answer = json.loads(out.stdout)
    return answer["flops"] / answer["step"] / ranks / FLOPS


def main():
    left, top, width, height = 60, 46, 620, 260
    x = lambda n: left + width * (math.log2(n) - 6) / 6  # noqa: E731
    y = lambda part: top + height * (1 - part)  # noqa: E731
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 150} {top + height + 50}" width="{left + width + 150}" height="{top + height + 50}" font-family="Helvetica,Arial,sans-serif" '
             f'font-size="12">', f'<rect width="{left + width + 150}" height="{top + height + 50}" fill="white"/>',
             f'<text x="8" y="20" font-size="14" fill="{INK}">GPT of 175 billion parameters, 1536 sequences a step: part of the ranks\' FLOP/s that it gets</text>']
    for i in range(6):
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(i / 5):.1f}" y2="{y(i / 5):.1f}" stroke="{GRID}"/><text x="{left - 8}" y="{y(i / 5) + 4:.1f}" text-anchor="end" fill="{SOFT}">{20 * i} %</text>')
    for n in RANKS:
        parts.append(f'<text x="{x(n):.1f}" y="{top + height + 20}" text-anchor="middle" fill="{SOFT}">{n}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle" fill="{SOFT}">ranks, 8 on a host</text>')
    ends = []
    for name, tp, pp, zero, color in FAMILIES:
        points = [(n, part) for n in RANKS if (part := ask(sys.argv[1], n, tp, pp, zero)) is not None]
        print(name, [(n, round(part, 3)) for n, part in points])
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(f"{x(n):.1f},{y(p):.1f}" for n, p in points)}"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(p):.1f}" r="3" fill="{color}"/>' for n, p in points]
        ends.append([y(points[-1][1]), x(points[-1][0]), name, color])
    ends.sort()
    for i, end in enumerate(ends):  # names do not lie on each other
        end[0] = max(end[0], ends[i - 1][0] + 16) if i else end[0]
        parts.append(f'<text x="{end[1] + 10:.1f}" y="{end[0] + 4:.1f}" fill="{end[3]}">{end[2]}</text>')
    (HERE / "simulate_plans.svg").write_text("\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
