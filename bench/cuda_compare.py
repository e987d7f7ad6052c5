#!/usr/bin/env python3
"""PyTorch beside bench_cuda, on the same card: python3 bench/cuda_compare.py OURS.jsonl

Runs the same cases, eager and compiled, and prints a table of milliseconds and ratios (above 1: ours is faster).
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

ours = {}
for line in open(sys.argv[1]):
    if line.startswith("{"):
        case = json.loads(line)
        ours[case["name"]] = case

device, bf16 = "cuda", torch.bfloat16
n = 1 << 28


def time_of(run):
    for _ in range(5):
        run()
    all_ms = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            run()
        end.record()
        end.synchronize()
        all_ms.append(start.elapsed_time(end) / 10)
    return statistics.median(all_ms)


cases = {}


def case(name):
    def add(make):
        cases[name] = make
    return add


def flat(dtype=bf16, size=n):
    return torch.ones(size, dtype=dtype, device=device)


@case("copy bf16")
def _():
    x, y = flat(), flat()
    return lambda: y.copy_(x)


@case("gelu bf16")
def _():
    x = flat()
    return lambda: F.gelu(x)


@case("add bf16")
def _():
    x, y = flat(), flat()
    return lambda: x + y


@case("sum bf16")
def _():
    x = flat()
    return lambda: x.sum()


@case("transpose bf16")
def _():
    side = int(n ** 0.5)
    x, y = flat(size=side * side).view(side, side), flat(size=side * side).view(side, side)
    return lambda: y.copy_(x.t())


@case("adamw f32 + bf16 copy")
def _():
    p = torch.nn.Parameter(flat(torch.float32, n // 4))
    p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW([p], fused=True)
    return optimizer.step


def rows_of(columns):
    return torch.randn(max(n // 2 // columns, 1), columns, device=device).to(bf16)


for columns in (768, 3072):
    @case(f"sum over rows bf16 {columns}")
    def _(columns=columns):
        x = rows_of(columns)
        return lambda: x.sum(0)

for columns in (768, 4096, 50304):
    @case(f"softmax bf16 {columns}")
    def _(columns=columns):
        x = rows_of(columns)
        return lambda: F.softmax(x, -1)

for columns in (768, 4096):
    @case(f"layer_norm bf16 {columns}")
    def _(columns=columns):
        x, w, b = rows_of(columns), torch.ones(columns, dtype=bf16, device=device), torch.zeros(columns, dtype=bf16, device=device)
        return lambda: F.layer_norm(x, (columns,), w, b)


@case("cross_entropy bf16 50304")
def _():
    x = rows_of(50304)
    y = torch.zeros(x.shape[0], dtype=torch.int64, device=device)
    return lambda: F.cross_entropy(x, y, reduction="none")


for name, dtype in (("bf16", bf16), ("f16", torch.float16), ("f32", torch.float32)):
    @case(f"matmul {name} 8192")
    def _(dtype=dtype):
        a, b = torch.randn(8192, 8192, device=device).to(dtype), torch.randn(8192, 8192, device=device).to(dtype)
        return lambda: a @ b


@case("linear + gelu bf16 768 to 3072")
def _():
    x, w, b = torch.randn(16384, 768, device=device).to(bf16), torch.randn(3072, 768, device=device).to(bf16), torch.zeros(3072, device=device).to(bf16)
    return lambda: F.gelu(F.linear(x, w, b), approximate="tanh")


for name, dtype in (("bf16", bf16), ("f32", torch.float32)):
    @case(f"conv2d {name} 64")
    def _(dtype=dtype):
        x = torch.randn(64, 64, 56, 56, device=device).to(dtype).contiguous(memory_format=torch.channels_last)
        w = torch.randn(64, 64, 3, 3, device=device).to(dtype)
        return lambda: F.conv2d(x, w, padding=1)


@case("attention causal bf16")
def _():
    q = torch.randn(16, 12, 1024, 64, device=device).to(bf16)
    return lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)


print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n")
print("| case | ours ms | of the bound | PyTorch ms | ratio | compiled ms | ratio |\n|---|---|---|---|---|---|---|")
with torch.no_grad():
    for name, make in cases.items():
        mine = ours.get(name, {})
        try:
            run = make()
            eager = time_of(run)
            try:
                compiled = time_of(torch.compile(run)) if name != "adamw f32 + bf16 copy" else eager
            except Exception:  # no compiler on this machine
                compiled = float("nan")
        except Exception as error:
            print(f"| {name} | {mine.get('ms', mine.get('error', '-'))} | | {str(error)[:60]} | | | |")
            continue
        finally:
            torch.cuda.empty_cache()
        ms = mine.get("ms")
        show = lambda other: f"{other:.4f} | {other / ms:.2f}" if ms else f"{other:.4f} | -"
        print(f"| {name} | {ms if ms else mine.get('error', '-')} | {mine.get('of_bound', '-')} | {show(eager)} | {show(compiled)} |")
