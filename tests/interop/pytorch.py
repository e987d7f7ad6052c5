#!/usr/bin/env python3
"""Random cases of our operations against PyTorch: values, gradients, and what is refused.

    pytorch.py build/tests/golden [--cases 20000] [--seed 1] [--only REGEX] [--keep FOLDER]

A case is drawn from (seed, number): operation, options, shapes (sizes 0, 1 and primes too), dtype, and how its inputs lie (transposed, sliced,
expanded). Inputs are rounded to the case's dtype; PyTorch computes in f64 from those, so its own 16-bit kernels set no standard. A result may
be off by TOLERANCE of its dtype, measured against the value itself plus a part of the largest value of its tensor (sums cancel). The same
program that runs the golden files runs the cases. What differs on purpose is in docs/differences.md, and not drawn here.
Skipped (exit code 77) without torch; $PYTHON names an interpreter that has it. Ends with "N passed, N failed".
"""
import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import warnings

from checks import need

need("torch")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
TOLERANCE = {"f64": 1e-9, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
REACH = {"f64": 1.0, "f32": 0.1, "f16": 0.02, "bf16": 0.02}


class Case:
    """The random inputs of a case, and what is computed from them."""

    def __init__(self, rng, dtype):
        self.rng, self.dtype, self.inputs, self.views, self.args = rng, dtype, [], {}, {}
        self.values_only, self.out_dtype, self.reach, self.refused = False, None, REACH[dtype], False

    def shape(self, least=0, greatest=4, zero=True):
        sizes = [1, 2, 3, 5, 7, 4, 8, 17] + ([0] if zero and self.rng.random() < 0.15 else [])
        return [self.rng.choice(sizes) for _ in range(self.rng.randint(least, greatest))]

    def tensor(self, shape, low=-2.0, high=2.0, views=True):
        """A floating-point input; some are views of a larger tensor, and the runner takes the same view."""
        name = f"in{len(self.inputs)}"
        base, view = list(shape), []
        kind = self.rng.random() if views and shape else 1.0
        if kind < 0.15 and len(shape) > 1:
            a, b = self.rng.sample(range(len(shape)), 2)
            base[a], base[b] = base[b], base[a]
            view = [["transpose", a, b]]
        elif kind < 0.3:
            d = self.rng.randrange(len(shape))
            step, start = self.rng.randint(1, 3), self.rng.randint(0, 2)
            base[d] = start + max(shape[d] * step, 0) + self.rng.randint(0, 1)
            view = [["slice", d, start, start + shape[d] * step, step]]
        elif kind < 0.4 and 0 not in shape:
            d = self.rng.randrange(len(shape))
            if shape[d] > 1:
                base[d] = 1
                view = [["expand", *shape]]
        values = torch.rand(base, dtype=torch.float64, generator=self.torch_rng) * (high - low) + low
        self.inputs.append(values.to(DTYPES[self.dtype]))
        if view:
            self.views[name] = view
        return len(self.inputs) - 1

    def index(self, shape, size):
        self.inputs.append(torch.randint(0, max(size, 1), shape, generator=self.torch_rng))
        return len(self.inputs) - 1

    def mask(self, shape):
        self.inputs.append((torch.rand(shape, generator=self.torch_rng) < 0.5).to(torch.int64))
        return len(self.inputs) - 1

    @property
    def torch_rng(self):
        if not hasattr(self, "_torch_rng"):
            self._torch_rng = torch.Generator().manual_seed(self.rng.getrandbits(48))
        return self._torch_rng

    def dim(self, rank):
        d = self.rng.randrange(max(rank, 1))
        return d - rank if rank and self.rng.random() < 0.5 else d


def applied(x, views):
    for kind, *v in views:
        if kind == "transpose":
            x = x.transpose(*v)
        elif kind == "slice":
            d, start, end, step = v
            x = x[(slice(None),) * d + (slice(start, end, step),)]
        else:
            x = x.expand(v)
    return x


FAMILIES = {}


def family(name, weight=1):
    def add(fn):
        FAMILIES[name] = (fn, weight)
        return fn
    return add


POSITIVE = (0.3, 3.0)
UNARY = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "square": torch.square, "exp": torch.exp, "expm1": torch.expm1, "log": (torch.log, POSITIVE), "log2": (torch.log2, POSITIVE), "log1p": (torch.log1p, (-0.7, 3.0)),
         "sqrt": (torch.sqrt, POSITIVE), "rsqrt": (torch.rsqrt, POSITIVE), "reciprocal": (torch.reciprocal, POSITIVE), "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid,
         "lgamma": (torch.lgamma, POSITIVE), "digamma": (torch.digamma, POSITIVE), "trigamma": (lambda x: torch.polygamma(1, x), POSITIVE),
         "log_sigmoid": F.logsigmoid, "relu": F.relu, "silu": F.silu, "mish": F.mish, "gelu_erf": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hardswish": (F.hardswish, (-4.5, 4.5)), "hardsigmoid": (F.hardsigmoid, (-4.5, 4.5)),
         "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc}


@family("unary", 4)
def unary(c):
    name = c.rng.choice(list(UNARY))
    fn, span = UNARY[name] if isinstance(UNARY[name], tuple) else (UNARY[name], (-3.0, 3.0))
    c.tensor(c.shape(), *span)
    # NaN and infinities: values only; at poles trigamma is large in PyTorch and infinite here
    if c.rng.random() < 0.1 and name not in ("sign", "trigamma"):
        c.values_only = True
        c.inputs[0] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, -1e-30, 80.0, -80.0, 1e4, -1e4]).to(DTYPES[c.dtype])
        c.views.clear()
    c.reach = min(c.reach, 0.02)
    return name, lambda x: fn(x)


@family("options", 1)
def options(c):
    name = c.rng.choice(["pow_scalar", "leaky_relu", "elu", "softplus", "clamp"])
    shape = c.shape()
    if name == "pow_scalar":
        e = c.args["exponent"] = c.rng.choice([2.0, 3.0, -1.0, 0.5, 0.0, 1.0, 1.7])
        c.tensor(shape, *((-2.0, 2.0) if e in (2.0, 3.0, 0.0, 1.0) else POSITIVE))
        return name, lambda x: x.pow(e)
    c.tensor(shape)
    if name == "leaky_relu":
        s = c.args["slope"] = c.rng.choice([0.01, 0.3, 1.5])
        return name, lambda x: F.leaky_relu(x, s)
    if name == "elu":
        a = c.args["alpha"] = c.rng.choice([1.0, 0.3, 2.0])
        return name, lambda x: F.elu(x, a)
    if name == "softplus":
        b, t = c.args["beta"], c.args["threshold"] = c.rng.choice([0.5, 1.0, 3.0]), c.rng.choice([20.0, 3.0])
        return name, lambda x: F.softplus(x, b, t)
    low, high = c.args["min"], c.args["max"] = -0.7, c.rng.choice([0.3, 1.5])
    return name, lambda x: x.clamp(low, high)


def broadcast_pair(c, low=-2.0, high=2.0):
    shape = c.shape(greatest=3)
    other = [1 if c.rng.random() < 0.3 else n for n in shape][c.rng.randint(0, len(shape)):]
    shapes = [shape, other] if c.rng.random() < 0.5 else [other, shape]
    for s in shapes:
        c.tensor(s, low, high)


@family("binary", 3)
def binary(c):
    table = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum, "silu_mul": lambda a, b: F.silu(a) * b}
    name = c.rng.choice(list(table))
    broadcast_pair(c, *(POSITIVE if name in ("div", "pow") else (-2.0, 2.0)))
    return name, table[name]


@family("compare")
def compare(c):
    name = c.rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])
    broadcast_pair(c)
    c.inputs = [t.round() for t in c.inputs]
    return name, lambda a, b: getattr(torch, name)(a, b).to(torch.int64)


@family("three")
def three(c):
    name = c.rng.choice(["where", "addcmul", "lerp"])
    if name == "where":
        shape = c.shape(greatest=3)
        c.mask(shape)
        c.tensor(shape), c.tensor([1 if c.rng.random() < 0.3 else n for n in shape])
        return name, lambda m, a, b: torch.where(m.bool(), a, b)
    if name == "lerp":
        w = c.args["weight"] = c.rng.choice([0.0, 0.3, 1.0, 1.5])
        broadcast_pair(c)
        return name, lambda a, b: torch.lerp(a, b, w)
    v = c.args["value"] = c.rng.choice([1.0, -0.5, 2.0])
    shape = c.shape(greatest=3)
    c.tensor(shape), c.tensor([1 if c.rng.random() < 0.3 else n for n in shape]), c.tensor(shape)
    return name, lambda a, b, d: torch.addcmul(a, b, d, value=v)


def some_dims(c, rank):
    dims = c.rng.sample(range(rank), c.rng.randint(0, rank)) if rank else []
    c.args["dim"] = [d - rank if c.rng.random() < 0.3 else d for d in dims]
    c.args["keepdim"] = c.rng.random() < 0.4
    return c.args["dim"] or list(range(rank)), c.args["keepdim"]


@family("reduce", 3)
def reduce(c):
    name = c.rng.choice(["sum", "mean", "prod", "amax", "amin", "norm2", "logsumexp", "var", "std"])
    shape = c.shape(least=1, zero=name in ("sum",))
    # for expanded inputs torch shares the gradient of ties over the view, and std's derivative is noise / noise
    c.tensor(shape, views=name not in ("amax", "amin", "std"))
    dims, keep = some_dims(c, len(shape))
    if name == "prod":  # torch takes one dimension at a time
        def fn(x):
            for d in sorted((d % len(shape) for d in dims), reverse=True):
                x = x.prod(d, keepdim=keep)
            return x
        return name, fn
    if name in ("var", "std"):
        correction = c.args["correction"] = c.rng.choice([0.0, 1.0])
        count = 1
        for d in dims:
            count *= shape[d]
        if count < 2:
            c.args["correction"] = correction = 0.0
            c.values_only = name == "std"
        return name, lambda x: getattr(torch, name)(x, dim=dims, correction=correction, keepdim=keep)
    if name == "norm2":
        return name, lambda x: torch.linalg.vector_norm(x, 2, dim=dims, keepdim=keep)
    return name, lambda x: getattr(torch, name)(x, dim=dims, keepdim=keep)


@family("along", 2)
def along(c):
    name = c.rng.choice(["max_dim", "min_dim", "argmax", "argmin", "cumsum", "cumprod", "topk", "sort", "softmax", "log_softmax"])
    shape = c.shape(least=1, zero=False)
    c.tensor(shape, views=name not in ("max_dim", "min_dim", "argmax", "argmin", "topk", "sort"))
    if name in ("max_dim", "min_dim", "argmax", "argmin", "topk", "sort"):  # no ties
        if c.dtype == "bf16":  # bf16 has all integers up to 256 only
            shape = [min(s, 5) for s in shape][:3]
        n = math.prod(shape)
        c.inputs[0] = ((torch.randperm(n, generator=c.torch_rng).double() - n // 2) / 4).reshape(shape).to(DTYPES[c.dtype])
    d = c.args["dim"] = c.dim(len(shape))
    if name == "topk":
        k, largest = c.args["k"], c.args["largest"] = c.rng.randint(0, shape[d]), c.rng.random() < 0.5
        return name, lambda x: tuple(x.topk(k, d, largest))
    if name == "sort":
        down = c.args["descending"] = c.rng.random() < 0.5
        return name, lambda x: tuple(x.sort(stable=True, dim=d, descending=down))
    if name in ("cumsum", "cumprod"):
        return name, lambda x: getattr(torch, name)(x, d)
    if name in ("softmax", "log_softmax"):
        if c.dtype in ("f16", "bf16"):
            c.reach = 1.0  # computed from a rounded result
        return name, lambda x: getattr(F, name)(x, d)
    keep = c.args["keepdim"] = c.rng.random() < 0.4
    if name.startswith("arg"):
        return name, lambda x: getattr(torch, name)(x, d, keepdim=keep)
    return name, lambda x: tuple(getattr(torch, name[:3])(x, d, keepdim=keep))


@family("matmul", 3)
def matmul(c):
    name = c.rng.choice(["matmul", "matmul", "addmm", "outer", "linear", "einsum"])
    m, k, n = (c.rng.choice([1, 2, 3, 7, 16, 33, 0 if c.rng.random() < 0.1 else 5]) for _ in range(3))
    if name == "outer":
        c.tensor([m]), c.tensor([n])
        return name, torch.outer
    if name == "addmm":
        beta, alpha = c.args["beta"], c.args["alpha"] = c.rng.choice([1.0, 0.5]), c.rng.choice([1.0, -2.0])
        c.tensor(c.rng.choice([[m, n], [n], [1, n]])), c.tensor([m, k]), c.tensor([k, n])
        return name, lambda a, b, d: torch.addmm(a, b, d, beta=beta, alpha=alpha)
    if name == "linear":
        c.tensor([*c.shape(least=0, greatest=2), k]), c.tensor([n, k])
        if c.rng.random() < 0.6:
            c.tensor([n])
        return name, F.linear
    if name == "einsum":
        equation, shapes = c.rng.choice([("ij,jk->ik", [[m, k], [k, n]]), ("bij,bkj->bik", [[2, m, k], [2, n, k]]), ("ij->ji", [[m, n]]), ("ij,ij->i", [[m, n], [m, n]]), ("bqhd,bkhd->bhqk", [[2, 3, 2, k], [2, 4, 2, k]])])
        c.args["equation"] = equation
        for s in shapes:
            c.tensor(s)
        return name, lambda *a: torch.einsum(equation, *a)
    batch = c.rng.choice([[], [], [2], [3, 2]])
    one, two = batch, c.rng.choice([batch, [], [1] * len(batch)])
    a, b = [*one, m, k], [*two, k, n]
    if c.rng.random() < 0.15:
        a = [k]
    elif c.rng.random() < 0.15:
        b = [k]
    c.tensor(a), c.tensor(b)
    return name, torch.matmul


@family("views", 2)
def views(c):
    shape = c.shape(least=1)
    rank = len(shape)
    name = c.rng.choice(["reshape", "permute", "transpose", "flip", "roll", "repeat", "pad", "tril", "triu", "cat", "stack", "split", "chunk", "expand", "diagonal", "cast"])
    if name in ("tril", "triu", "diagonal"):
        shape = shape + [c.rng.choice([1, 3, 4])] if rank < 2 else shape
        if name == "diagonal":
            shape = shape[-2:]
            o = c.args["offset"] = c.rng.randint(-1, 1)
            c.tensor(shape)
            return name, lambda x: torch.diagonal(x, o)
        o = c.args["diagonal"] = c.rng.randint(-2, 2)
        c.tensor(shape)
        return name, lambda x: getattr(torch, name)(x, o)
    if name in ("cat", "stack"):
        d = c.args["dim"] = c.rng.randrange(rank + (name == "stack"))
        for _ in range(c.rng.randint(1, 3)):
            s = list(shape)
            if name == "cat":
                s[d] = c.rng.randint(0, 4)
            c.tensor(s)
        return name, lambda *x: getattr(torch, name)(x, d)
    c.tensor(shape)
    d = c.dim(rank)
    if name == "reshape":
        s = c.args["shape"] = [-1] if c.rng.random() < 0.5 and 0 not in shape else [int(torch.Size(shape).numel())]
        return name, lambda x: x.reshape(s)
    if name == "permute":
        p = c.args["dims"] = c.rng.sample(range(rank), rank)
        return name, lambda x: x.permute(p)
    if name == "transpose":
        p = c.args["dims"] = [c.dim(rank), c.dim(rank)]
        return name, lambda x: x.transpose(*p)
    if name == "flip":
        p = c.args["dims"] = c.rng.sample(range(rank), c.rng.randint(1, rank))
        return name, lambda x: x.flip(p)
    if name == "roll":
        p, s = c.args["dims"], c.args["shifts"] = [c.rng.randrange(rank)], [c.rng.randint(-5, 5)]
        return name, lambda x: x.roll(s, p)
    if name == "repeat":
        r = c.args["repeats"] = [c.rng.randint(1, 3) for _ in range(rank + c.rng.randint(0, 1))]
        return name, lambda x: x.repeat(r)
    if name == "pad":
        p = c.args["pad"] = [c.rng.randint(0, 2) for _ in range(2 * c.rng.randint(1, rank))]
        v = c.args["value"] = c.rng.choice([0.0, 1.5])
        return name, lambda x: F.pad(x, p, value=v)
    if name == "split":
        n = shape[d]
        cut = c.rng.randint(0, n)
        sizes = c.args["sizes"] = [cut, n - cut]
        c.args["dim"] = d
        return name, lambda x: tuple(x.split(sizes, d))
    if name == "chunk":
        k = c.args["chunks"] = c.rng.randint(1, 4)
        c.args["dim"] = d
        if shape[d] == 0:
            c.inputs.clear(), c.views.clear()
            shape[d] = 2
            c.tensor(shape)
        return name, lambda x: tuple(x.chunk(k, d))
    if name == "cast":
        to = c.args["dtype"] = c.rng.choice(list(DTYPES))
        c.out_dtype = to
        return name, lambda x: x.to(DTYPES[to]).double()
    e = c.args["shape"] = [2, *shape]
    return "expand", lambda x: x.expand(e)


@family("indexing", 2)
def indexing(c):
    name = c.rng.choice(["index_select", "gather", "scatter_add", "masked_fill", "embedding"])
    shape = c.shape(least=1, greatest=3, zero=False)
    d = c.args["dim"] = c.dim(len(shape))
    if name == "embedding":
        v, w = c.rng.randint(1, 9), c.rng.randint(1, 8)
        c.args.clear()
        c.tensor([v, w], views=False)
        c.index(c.shape(least=0, greatest=2), v)
        return name, lambda t, i: F.embedding(i, t)
    c.tensor(shape)
    if name == "index_select":
        c.index([c.rng.randint(0, 6)], shape[d])
        return name, lambda x, i: x.index_select(d, i)
    if name == "masked_fill":
        c.mask([1 if c.rng.random() < 0.3 else n for n in shape])
        v = c.args["value"] = c.rng.choice([0.0, -3.0])
        return name, lambda x, m: x.masked_fill(m.bool(), v)
    s = [c.rng.randint(1, n) for n in shape]
    s[d] = c.rng.randint(0, 5)
    c.index(s, shape[d])
    if name == "gather":
        return name, lambda x, i: x.gather(d, i)
    c.tensor(s)
    return name, lambda x, i, y: x.scatter_add(d, i, y)


def pair(c, least, greatest):
    return [c.rng.randint(least, greatest), c.rng.randint(least, greatest)]


@family("composed", 1)
def composed(c):
    """extensions/layers/composed.h and the ellipsis of einsum. Makes extensions/layers/tests/golden/composed.safetensors and extensions/operations/tests/golden/einsum.safetensors: --only ^composed --cases
    2000 --seed 21 --keep FOLDER.
    """
    name = c.rng.choice(["cdist", "take_along_dim", "logcumsumexp", "quantile", "median", "median_dim", "meshgrid", "einsum"])
    p, r, m = (c.rng.choice([1, 2, 3, 5]) for _ in range(3))
    if name == "cdist":
        batch = c.rng.choice([[], [2], [3, 2]])
        c.tensor(batch + [p, m]), c.tensor(c.rng.choice([batch, [1] * len(batch), []]) + [r, m])
        c.reach = 1.0 if c.dtype in ("f16", "bf16") else c.reach  # computed from a rounded result
        return name, lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    if name == "einsum":
        equation, shapes = c.rng.choice([("...ij,...jk->...ik", [[2, p, m], [2, m, r]]), ("...ij,jk", [[2, 3, p, m], [m, r]]), ("i...,i...->...", [[m, 1, p], [m, r, p]]), ("...,...->...", [[p, m], [m]]),
                                         ("b...,b...->b", [[2, p, m], [2, p, m]]), ("...ii->...i", [[p, 3, 3]]), ("a...b->b...a", [[p, m, r]]), ("... , i", [[p, m], [r]])])
        c.args["equation"] = equation
        for s in shapes:
            c.tensor(s)
        return name, lambda *a: torch.einsum(equation, *a)
    if name == "meshgrid":
        xy = c.args["xy"] = c.rng.random() < 0.5
        for _ in range(c.rng.randint(2 if xy else 1, 3)):
            c.tensor(c.rng.choice([[p], [r], [m], []]))
        return name, lambda *v: torch.meshgrid(*v, indexing="xy" if xy else "ij")
    shape = c.shape(least=1, greatest=3, zero=False)
    shape = [min(s, 5) for s in shape]
    n = math.prod(shape)
    d = c.dim(len(shape))
    c.tensor(shape, -9.0, 9.0, views=name not in ("quantile", "median", "median_dim"))
    if name == "logcumsumexp":
        c.args["dim"] = d
        c.reach = 1.0 if c.dtype in ("f16", "bf16") else c.reach
        return name, lambda x: torch.logcumsumexp(x, d)
    if name == "take_along_dim":
        c.args["dim"] = d
        places = [1 if c.rng.random() < 0.3 else s for s in shape]
        places[d] = c.rng.randint(1, 4)
        c.index(places, shape[d])
        return name, lambda x, i: torch.take_along_dim(x, i, d)
    c.inputs[0] = ((torch.randperm(n, generator=c.torch_rng).double() - n // 2) / 4).reshape(shape).to(DTYPES[c.dtype])  # no ties
    if c.rng.random() < 0.1:
        c.values_only = True
        c.inputs[0].view(-1)[c.rng.randrange(n)] = float("nan")
    if name == "median":
        return name, torch.median
    keep = c.args["keepdim"] = c.rng.random() < 0.4
    if name == "median_dim":
        c.args["dim"] = d
        return name, lambda x: tuple(torch.median(x, d, keepdim=keep))
    d = c.args["dim"] = c.rng.choice([d, None])
    q, interpolation = c.args["q"], c.args["how"] = c.rng.choice([0.0, 0.25, 0.4, 0.5, 0.9, 1.0]), c.rng.choice(["linear", "lower", "higher", "nearest", "midpoint"])
    return name, lambda x: torch.quantile(x, q, dim=d, keepdim=keep, interpolation=interpolation)


@family("picking", 1)
def picking(c):
    """composed.h and search.h of extensions/layers. Makes extensions/layers/tests/golden/picking.safetensors: --only ^picking --cases 2000
    --seed 14 --keep FOLDER.
    """
    name = c.rng.choice(["masked_select", "index_put", "index_put", "msort", "kthvalue", "searchsorted", "bucketize", "bincount", "histc", "unique", "unique_consecutive", "nonzero"])
    rng, args = c.rng, c.args

    def steps(shape, low=-3, high=4):  # integers, so that there are ties and every dtype can hold them
        return torch.randint(low, high, shape, generator=c.torch_rng).to(DTYPES[c.dtype])
    shape = [min(s, 5) for s in c.shape(least=0 if name in ("masked_select", "kthvalue", "msort", "nonzero", "unique", "unique_consecutive") else 1, greatest=3)]
    if name == "masked_select":
        c.tensor(shape)
        c.mask([1 if rng.random() < 0.3 else s for s in shape[rng.randint(0, len(shape)):]])
        return name, lambda x, m: x.masked_select(m.bool())
    if name == "index_put":
        shape = [max(s, 1) for s in shape]
        c.tensor(shape)
        batch, pattern, left = rng.choice([[], [3], [2, 3], [0], [1, 4]]), "", list(shape)
        indices = []
        while left and (not pattern.strip(":") or rng.random() < 0.6):
            kind = rng.choice("iii:m")
            if kind == "m" and "i" not in pattern and len(left) >= 1 and "m" not in pattern:
                over = left[:rng.randint(1, len(left))]
                indices.append(torch.rand(over, generator=c.torch_rng) < 0.5)
                pattern, left = pattern + "m", left[len(over):]
            elif kind == ":" and len(left) > 1:
                indices.append(None)
                pattern, left = pattern + ":", left[1:]
            elif "m" not in pattern:
                own = [1 if rng.random() < 0.2 and b != 0 else b for b in batch[rng.randint(0, len(batch)) if rng.random() < 0.3 else 0:]]
                indices.append(torch.randint(-left[0], left[0], own, generator=c.torch_rng))
                pattern, left = pattern + "i", left[1:]
            elif indices:
                break
        args["how"], args["accumulate"] = pattern, rng.random() < 0.5
        # x[...] would take a scalar as an integer
        numbers = torch.ops.aten.index(torch.arange(math.prod(shape)).reshape(shape), indices)
        result = numbers.shape
        if not args["accumulate"]:  # PyTorch does not define which of several values wins
            if len(set(numbers.reshape(-1).tolist())) < numbers.numel():
                args["accumulate"] = True
        cut = list(result[rng.randint(0, len(result)):]) if rng.random() < 0.3 else list(result)
        c.tensor([1 if rng.random() < 0.2 else s for s in cut])
        c.inputs += [i.to(torch.int64) for i in indices if i is not None]
        add = args["accumulate"]

        def put(x, v, *given):
            given = iter(given)
            real = [None if k == ":" else (next(given).bool() if k == "m" else next(given)) for k in pattern]
            return torch.ops.aten.index_put(x, real, v, add)
        return name, put
    if name in ("msort", "kthvalue"):
        shape = [max(s, 1) for s in shape]
        n = math.prod(shape)
        c.inputs.append(((torch.randperm(n, generator=c.torch_rng).double() - n // 2) / 4).reshape(shape).to(DTYPES[c.dtype]))
        if name == "msort":
            return name, torch.msort
        d = args["dim"] = c.dim(len(shape)) if shape else rng.choice([0, -1])
        k, keep = args["k"], args["keepdim"] = rng.randint(1, shape[d] if shape else 1), rng.random() < 0.5
        if rng.random() < 0.1:
            args["k"] = k = rng.choice([0, (shape[d] if shape else 1) + 1])
            c.refused = True
        return name, lambda x: tuple(x.kthvalue(k, d, keepdim=keep))
    c.values_only = True
    if name in ("searchsorted", "bucketize"):
        right = args["right"] = rng.random() < 0.5
        if name == "bucketize" or rng.random() < 0.4:
            sequence, values = steps([rng.randint(0, 7)]), steps(shape)
        else:
            sequence, values = steps(shape[:-1] + [rng.randint(0, 7)]), steps(shape)
        if rng.random() < 0.2 and values.numel():
            values.view(-1)[0] = float("nan")
        if name == "bucketize":
            c.inputs += [values, sequence.sort()[0]]
            return name, lambda v, b: torch.bucketize(v, b, right=right)
        order = sequence.sort(stable=True)
        if rng.random() < 0.4:
            c.inputs += [sequence, values, order[1]]
            return name, lambda s, v, o: torch.searchsorted(s, v, right=right, sorter=o)
        c.inputs += [order[0], values]
        return name, lambda s, v: torch.searchsorted(s, v, right=right)
    if name == "bincount":
        n = rng.choice([0, 1, 2, 7, 100])
        args["minlength"] = m = rng.choice([0, 3, 20])
        c.index([n], 9)
        if rng.random() < 0.15 and n:
            c.inputs[0][0] = -1
            c.refused = True
        if rng.random() < 0.5:
            c.tensor([n], views=False)
            return name, lambda x, w: torch.bincount(x, w, m)
        return name, lambda x: torch.bincount(x, minlength=m)
    if name == "histc":
        c.dtype = "f64" if c.dtype in ("f64", "f16") else "f32"
        c.inputs.append(torch.rand(shape, generator=c.torch_rng, dtype=torch.float64).to(DTYPES[c.dtype]) * 8 - 4 if rng.random() < 0.5 else steps(shape))
        bins = args["bins"] = rng.choice([1, 2, 8, 100])
        args["min"], args["max"] = low, high = rng.choice([(0.0, 0.0), (-2.0, 2.0), (-1.0, 3.0), (1.0, 1.0)])
        if c.inputs[0].numel() == 0:
            c.inputs[0] = torch.ones(1, dtype=DTYPES[c.dtype])
        own = DTYPES[c.dtype]
        return name, lambda x: torch.histc(x.detach().to(own), bins, low, high).double()
    # unique along a dimension: only a few different slices
    if name.startswith("unique") and shape and rng.random() < 0.6:
        d = rng.randrange(len(shape))
        shape = [s if k == d else min(s, 2) for k, s in enumerate(shape)]
        c.inputs.append(steps(shape, 0, 2))
        args["dim"] = d - len(shape) if rng.random() < 0.5 else d
        c.refused = 0 in shape[:d] + shape[d + 1:]
    else:
        d = None
        c.inputs.append(steps(shape))
    if name.startswith("unique"):
        return name, lambda x: tuple(getattr(torch, name)(x, return_inverse=True, return_counts=True, dim=d))
    if rng.random() < 0.3 and c.inputs[0].numel():
        c.inputs[0].view(-1)[0] = float("nan")
    return name, torch.nonzero


@family("convolution", 2)
def convolution(c):
    name = c.rng.choice(["conv2d", "conv_transpose2d"])
    groups = c.args["groups"] = c.rng.choice([1, 1, 2, 3])
    channels, out, kernel = groups * c.rng.randint(1, 3), groups * c.rng.randint(1, 3), pair(c, 1, 3)
    stride, dilation, padding = pair(c, 1, 3), pair(c, 1, 3), pair(c, 0, 2)
    c.args.update(stride=stride, padding=padding, dilation=dilation)
    size = [max(c.rng.randint(1, 9), dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i], 1) for i in range(2)]
    if name == "conv_transpose2d":
        extra = c.args["output_padding"] = [c.rng.randrange(max(stride[i], dilation[i])) for i in range(2)]
        for i in range(2):
            while (size[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + extra[i] + 1 < 1:
                size[i] += 1
    c.tensor([c.rng.randint(1, 2), channels, *size])
    c.tensor([out, channels // groups, *kernel] if name == "conv2d" else [channels, out // groups, *kernel])
    if c.rng.random() < 0.5:
        c.tensor([out])
    if name == "conv2d":
        return name, lambda x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups)
    return name, lambda x, w, b=None: F.conv_transpose2d(x, w, b, stride, padding, extra, groups, dilation)


@family("pooling")
def pooling(c):
    name = c.rng.choice(["max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"])
    size = pair(c, 4, 9)
    if name == "adaptive_avg_pool2d":
        to = c.args["size"] = pair(c, 1, 5)
        c.tensor([2, 3, *size])
        return name, lambda x: F.adaptive_avg_pool2d(x, to)
    kernel, stride, ceil = c.args["kernel"], c.args["stride"], c.args["ceil_mode"] = pair(c, 1, 4), pair(c, 1, 3), c.rng.random() < 0.4
    padding = c.args["padding"] = [c.rng.randint(0, k // 2) for k in kernel]
    c.tensor([2, 2, *size], views=False)
    if name == "max_pool2d":
        n = c.inputs[0].numel()
        c.inputs[0] = ((torch.randperm(n, generator=c.torch_rng).double() - n // 2) / 4).reshape(c.inputs[0].shape)
        if c.dtype == "bf16":
            c.values_only = True  # the dtype does not have that many values, so there are ties
        c.inputs[0] = c.inputs[0].to(DTYPES[c.dtype])
        return name, lambda x: F.max_pool2d(x, kernel, stride, padding, 1, ceil)
    count = c.args["count_include_pad"] = c.rng.random() < 0.5
    return name, lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, count)


@family("norms", 2)
def norms(c):
    name = c.rng.choice(["layer_norm", "rms_norm", "group_norm", "batch_norm"])
    eps = c.args["eps"] = c.rng.choice([1e-5, 1e-2])
    n, ch = c.rng.randint(2, 4), c.rng.choice([2, 4, 6])
    affine = c.rng.random() < 0.7
    if name in ("layer_norm", "rms_norm"):
        w = c.rng.choice([3, 8, 17])
        c.tensor([n, *c.shape(greatest=2, zero=False), w], views=False)
        c.args["shape"] = [w]
        if affine or name == "rms_norm":
            c.tensor([w], 0.5, 1.5, views=False)
        if name == "rms_norm":
            return name, lambda x, g: F.rms_norm(x, [w], g, eps)
        if affine:
            c.tensor([w], views=False)
        return name, lambda x, g=None, b=None: F.layer_norm(x, [w], g, b, eps)
    c.tensor([n, ch, c.rng.randint(2, 5), 3] if name == "group_norm" or c.rng.random() < 0.5 else [n + 2, ch], views=False)
    if affine:
        c.tensor([ch], 0.5, 1.5, views=False), c.tensor([ch], views=False)
    if name == "group_norm":
        g = c.args["groups"] = c.rng.choice([1, 2, ch])
        return name, lambda x, w=None, b=None: F.group_norm(x, g, w, b, eps)
    return name, lambda x, w=None, b=None: F.batch_norm(x, None, None, w, b, True, 0.1, eps)


@family("attention")
def attention(c):
    b, h, t, s, d, v = c.rng.randint(1, 2), c.rng.choice([1, 2, 4]), c.rng.choice([1, 3, 8, 17]), c.rng.choice([2, 5, 16, 33]), c.rng.choice([4, 8, 16]), c.rng.choice([4, 8])
    kv = c.rng.choice([1, h])
    causal = c.rng.random() < 0.4
    if causal:
        s, c.args["causal"] = t, True
    v = d
    scale = c.args["scale"] = c.rng.choice([0.3, d ** -0.5])
    c.tensor([b, h, t, d], views=False), c.tensor([b, kv, s, d], views=False), c.tensor([b, kv, s, v], views=False)
    masked = not causal and c.rng.random() < 0.3
    if masked:
        c.tensor([b, h, t, s], views=False)
        c.inputs[-1].mul_(1.0)
        c.no_grad = {3}
    if c.dtype in ("f16", "bf16"):
        c.reach = 0.3
    return "attention", lambda q, k, w, m=None: F.scaled_dot_product_attention(q, k.repeat_interleave(h // kv, 1), w.repeat_interleave(h // kv, 1), m, is_causal=causal, scale=scale)


@family("losses", 2)
def losses(c):
    name = c.rng.choice(["cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "bce_with_logits", "kl_div"])
    r = c.args["reduction"] = c.rng.choice(["mean", "sum"] if name == "kl_div" else ["mean", "sum", "none"])
    shape = c.shape(least=1, greatest=3, zero=False)
    if name in ("cross_entropy", "nll_loss"):
        classes = c.rng.choice([2, 5, 9])
        rest = c.shape(greatest=2, zero=False)
        n = c.rng.randint(1, 6)
        c.tensor([n, classes, *rest])
        c.index([n, *rest], classes)
        weighted, smoothing, ignored = c.rng.random() < 0.4, 0.0, -100
        if weighted:
            c.tensor([classes], 0.5, 2.0, views=False)
            c.no_grad = {2}
        if c.rng.random() < 0.3:
            ignored = c.args["ignore_index"] = 0
            c.inputs[1].view(-1)[0] = 1
        if name == "cross_entropy":
            smoothing = c.args["label_smoothing"] = c.rng.choice([0.0, 0.1])
            if c.dtype in ("f16", "bf16"):
                c.out_dtype = "f32"
            return name, lambda x, t, w=None: F.cross_entropy(x, t, w, ignore_index=ignored, reduction=r, label_smoothing=smoothing)
        return name, lambda x, t, w=None: F.nll_loss(x, t, w, ignore_index=ignored, reduction=r)
    c.tensor(shape)
    c.tensor(shape, *((0.05, 0.95) if name in ("bce_with_logits", "kl_div") else (-2.0, 2.0)))
    if name == "smooth_l1_loss":
        b = c.args["beta"] = c.rng.choice([0.3, 1.0])
        return name, lambda x, y: F.smooth_l1_loss(x, y, reduction=r, beta=b)
    if name == "huber_loss":
        b = c.args["delta"] = c.rng.choice([0.3, 1.0])
        return name, lambda x, y: F.huber_loss(x, y, reduction=r, delta=b)
    if name == "bce_with_logits":
        return name, lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=r)
    if name == "kl_div":
        log = c.args["log_target"] = c.rng.random() < 0.5
        return name, lambda x, y: F.kl_div(x, y, reduction=r, log_target=log)
    return name, lambda x, y: getattr(F, name)(x, y, reduction=r)


def focal(x, t, alpha, gamma, reduction):
    """torchvision's sigmoid_focal_loss, which may not be installed."""
    p, ce = torch.sigmoid(x), F.binary_cross_entropy_with_logits(x, t, reduction="none")
    loss = ce * (1 - (p * t + (1 - p) * (1 - t))) ** gamma
    loss = loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss
    return {"none": lambda v: v, "mean": torch.mean, "sum": torch.sum}[reduction](loss)


@family("margins", 2)
def margins(c):
    """extensions/layers/losses.h. Makes losses.safetensors of extensions/layers/tests/golden and extensions/operations/tests/golden: --only ^margins --cases 2000 --seed 21 --keep FOLDER.
    """
    name = c.rng.choice(["bce_loss", "bce_with_logits_weighted", "poisson_nll_loss", "gaussian_nll_loss", "sigmoid_focal_loss", "soft_margin_loss", "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss",
                         "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "pairwise_distance", "triplet_margin_loss", "triplet_margin_with_distance_loss"])
    r = c.args["reduction"] = c.rng.choice(["mean", "sum", "none"])
    if c.dtype in ("f16", "bf16"):
        c.reach = 0.3  # differences of rounded values
    if name == "cosine_embedding_loss":
        c.reach = 1.0  # for vectors of one element it does not depend on them
    n, d = c.rng.choice([1, 2, 3, 5]), c.rng.choice([1, 2, 3, 5, 7])
    shape = c.rng.choice([[n, d], [n, 2, d], [d], [2, d]])

    def signs(of):
        c.inputs.append(torch.randint(0, 2, of, generator=c.torch_rng) * 2 - 1)

    def weight(of, low=0.5):
        c.tensor(of, low, 2.0, views=False)
        c.no_grad = getattr(c, "no_grad", set()) | {len(c.inputs) - 1}

    def option(key, *values):
        c.args[key] = c.rng.choice(values)
        return c.args[key]

    if name in ("bce_loss", "bce_with_logits_weighted", "poisson_nll_loss", "gaussian_nll_loss", "sigmoid_focal_loss", "multilabel_soft_margin_loss"):
        log_input = name != "poisson_nll_loss" or option("log_input", True, False)
        c.tensor(shape, *((0.05, 0.95) if name == "bce_loss" else (-2.0, 2.0) if log_input else (0.1, 3.0)))
        c.tensor(shape, *((0.0, 4.0) if name == "poisson_nll_loss" else (-2.0, 2.0) if name == "gaussian_nll_loss" else (0.0, 1.0)))
        if name == "poisson_nll_loss":
            full, eps = option("full", True, False), option("eps", 1e-8, 0.1)
            return name, lambda x, t: F.poisson_nll_loss(x, t, log_input, full, eps=eps, reduction=r)
        if name == "gaussian_nll_loss":
            full, eps = option("full", True, False), option("eps", 1e-6, 0.5)
            c.tensor(c.rng.choice([shape, shape[:-1], shape[:-1] + [1]]), 0.1, 2.0)
            return name, lambda x, t, v: F.gaussian_nll_loss(x, t, v, full, eps, r)
        if name == "sigmoid_focal_loss":
            alpha, gamma = option("alpha", 0.25, 0.6, -1.0), option("gamma", 2.0, 0.0, 1.5)
            return name, lambda x, t: focal(x, t, alpha, gamma, r)
        if name == "bce_with_logits_weighted":
            weight(shape), weight(shape[-1:])
            return name, lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, reduction=r, pos_weight=p)
        if c.rng.random() < 0.5:
            weight(shape[-1:])
        if name == "bce_loss":
            return name, lambda x, t, w=None: F.binary_cross_entropy(x, t, w, reduction=r)
        return name, lambda x, t, w=None: F.multilabel_soft_margin_loss(x, t, w, reduction=r)
    if name in ("multi_margin_loss", "multilabel_margin_loss"):
        shape = [n, d] if c.rng.random() < 0.8 else [d]
        c.tensor(shape)
        if name == "multilabel_margin_loss":
            c.inputs.append(torch.stack([torch.randperm(d, generator=c.torch_rng).masked_fill(torch.arange(d) == c.rng.randint(0, d), -1) for _ in range(n)])[:n if len(shape) == 2 else 1].reshape(shape))
            return name, lambda x, t: F.multilabel_margin_loss(x, t, reduction=r)
        c.index(shape[:-1], d)
        p, margin = option("p", 1, 2), option("margin", 1.0, 0.3)
        if c.rng.random() < 0.5:
            weight([d])
        return name, lambda x, t, w=None: F.multi_margin_loss(x, t, p, margin, w, reduction=r)
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        c.tensor(shape)
        signs(shape)
        if name == "soft_margin_loss":
            return name, lambda x, t: F.soft_margin_loss(x, t, reduction=r)
        margin = option("margin", 1.0, 0.3)
        return name, lambda x, t: F.hinge_embedding_loss(x, t, margin, reduction=r)
    if name in ("margin_ranking_loss", "cosine_embedding_loss"):
        shape = shape if name == "margin_ranking_loss" else c.rng.choice([[n, d], [d]])
        c.tensor(shape), c.tensor(shape)
        signs(shape if name == "margin_ranking_loss" else shape[:-1])
        margin = option("margin", 0.0, 0.3)
        return name, lambda a, b, t: getattr(F, name)(a, b, t, margin, reduction=r)
    c.tensor(shape), c.tensor(shape)
    if name == "pairwise_distance":
        p, keep, eps = option("p", 2.0, 1.0, 3.0, 0.5, "inf"), option("keepdim", True, False), option("eps", 1e-6, 0.1)
        return name, lambda x, y: F.pairwise_distance(x, y, float(p), eps, keep)
    c.tensor(shape)
    margin, swap = option("margin", 1.0, 0.3), option("swap", True, False)
    if name == "triplet_margin_loss":
        p, eps = option("p", 2.0, 1.0, 3.0), option("eps", 1e-6, 0.1)
        return name, lambda a, p_, n_: F.triplet_margin_loss(a, p_, n_, margin, p, eps, swap, reduction=r)
    c.reach = 1.0  # the anchor's gradient is a difference of two
    # our function gets the inputs' dtype
    squares = (lambda x, y: (x - y).square().sum(-1)) if option("squares", c.dtype in ("f64", "f32"), False) else None
    return name, lambda a, p_, n_: F.triplet_margin_with_distance_loss(a, p_, n_, distance_function=squares, margin=margin, swap=swap, reduction=r)


@family("fft", 2)
def fft(c):
    """Complex numbers, passed as pairs. Makes tests/golden/fft.safetensors: --only ^fft --cases 2000 --seed 5 --keep
    FOLDER.
    """
    c.dtype = "f64" if c.dtype == "f64" else "f32"
    c.reach = REACH[c.dtype]
    number = lambda x: x if c.args.get("real") else torch.complex(x[..., 0], x[..., 1])
    pairs = lambda y: torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    name = c.rng.choice(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2", "fftshift", "ifftshift", "complex_add", "complex_sub", "complex_mul", "complex_div",
                         "complex_abs", "complex_angle", "complex_conj", "complex_square", "complex_reciprocal", "complex_sum"])
    shape = [c.rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 17]) for _ in range(c.rng.randint(2, 3))]
    if name.startswith("complex_"):
        op = name[8:]
        other = [1 if c.rng.random() < 0.3 else size for size in shape][c.rng.randint(0, 1):]
        c.tensor(shape + [2], 0.2, 2.0)
        if op in ("add", "sub", "mul", "div"):
            c.tensor(other + [2], 0.2, 2.0)
            return name, lambda a, b: pairs(getattr(torch, op)(number(a), number(b)))
        return name, lambda a: pairs(getattr(torch, op)(number(a)))
    if name in ("rfft", "ihfft", "rfftn", "rfft2") or name in ("fft", "ifft", "fftn") and c.rng.random() < 0.2:
        c.args["real"] = True
    c.tensor(shape + ([] if c.args.get("real") else [2]))
    fn = getattr(torch.fft, name)
    if name.endswith("shift"):
        d = c.args["dims"] = c.rng.sample(range(len(shape)), c.rng.randint(1, len(shape)))
        return name, lambda x: pairs(fn(number(x), d))
    norm = c.args["norm"] = c.rng.choice(["backward", "ortho", "forward"])
    half = name in ("irfft", "hfft", "irfftn", "irfft2")
    if name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        dim = c.args["dim"] = c.dim(len(shape))
        n = c.rng.choice([1, 2, 3, 6, 11, 16]) if c.rng.random() < 0.5 or (half and shape[dim] == 1) else None
        if n:
            c.args["n"] = n
        return name, lambda x: pairs(fn(number(x), n, dim, norm))
    dims = c.args["dims"] = c.rng.sample(range(len(shape)), 2 if name.endswith("2") else c.rng.randint(1, len(shape)))
    s = [c.rng.choice([1, 2, 3, 6, 11]) for _ in dims] if c.rng.random() < 0.5 or (half and shape[dims[-1]] == 1) else None
    if s:
        c.args["s"] = s
    return name, lambda x: pairs(fn(number(x), s, dims, norm=norm))


@family("refused")
def refused(c):
    """Calls that both must reject."""
    c.refused = True
    name = c.rng.choice(["add", "matmul", "cat", "reshape", "sum", "softmax", "conv2d", "gather", "layer_norm", "mse_loss", "permute", "expand", "index_select", "cross_entropy"])
    t = lambda *shape: c.tensor(list(shape), views=False)
    if name == "add":
        t(3, 4), t(2, 4)
        return name, torch.add
    if name == "matmul":
        t(3, 4), t(5, 2)
        return name, torch.matmul
    if name == "cat":
        t(2, 3), t(2, 4)
        c.args["dim"] = 0
        return name, lambda *x: torch.cat(x, 0)
    if name == "mse_loss":
        t(2, 3), t(2, 2)
        return name, F.mse_loss
    if name == "conv2d":
        t(1, 3, 4, 4), t(2, 2, 3, 3)
        c.args.update(stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        return name, F.conv2d
    if name == "gather":
        t(2, 3)
        c.inputs.append(torch.tensor([[3, 0, 0]]))
        c.args["dim"] = 1
        return name, lambda x, i: x.gather(1, i)
    if name == "index_select":
        t(2, 3)
        c.inputs.append(torch.tensor([2]))
        c.args["dim"] = 0
        return name, lambda x, i: x.index_select(0, i)
    if name == "cross_entropy":
        t(2, 3)
        c.inputs.append(torch.tensor([0, c.rng.choice([3, -1])]))
        return name, F.cross_entropy
    t(2, 3)
    if name == "layer_norm":
        c.args.update(shape=[2], eps=1e-5)
        return name, lambda x: F.layer_norm(x, [2])
    if name == "reshape":
        c.args["shape"] = [4, 2]
        return name, lambda x: x.reshape(4, 2)
    if name == "permute":
        p = c.args["dims"] = c.rng.choice([[0, 0], [0], [0, 2]])
        return name, lambda x: x.permute(p)
    if name == "expand":
        c.args["shape"] = [4, 3]
        return name, lambda x: x.expand(4, 3)
    d = c.rng.choice([2, -3])
    c.args["dim"] = [d] if name == "sum" else d
    return name, (lambda x: x.sum(d)) if name == "sum" else (lambda x: x.softmax(d))


def make(seed, number, only):
    """One case as (json, tensors); None if `only` does not match it."""
    rng = random.Random(f"{seed}:{number}")
    names = list(FAMILIES)
    which = rng.choices(names, [FAMILIES[n][1] for n in names])[0]
    c = Case(rng, rng.choices(list(DTYPES), [2, 4, 2, 2])[0])
    op, fn = FAMILIES[which][0](c)
    if only and not re.search(only, which + " " + op):
        return None
    name = f"{which}-{op}-{c.dtype}-{number}"
    tensors = {f"in{i}": t for i, t in enumerate(c.inputs)}
    out_dtype = c.out_dtype or c.dtype
    entry = {"name": name, "op": op, "args": c.args, "views": c.views, "tolerance": max(TOLERANCE[c.dtype], TOLERANCE[out_dtype]), "reach": c.reach}
    # Derivatives computed from a rounded result, and sums of separately rounded gradients (of an expanded input).
    loose = c.dtype in ("f16", "bf16") and (which in ("binary", "three", "attention") or (which, op) == ("composed", "einsum") or op in ("expm1", "tanh", "sigmoid", "log_sigmoid", "softmax", "log_softmax", "repeat", "linear", "matmul", "bce_with_logits"))
    loose = loose or any(view[0][0] == "expand" for view in c.views.values())
    if op == "hardsigmoid":
        # PyTorch's derivative divides by a six in f32, in f64 as well
        entry["tolerance"] = max(entry["tolerance"], 1e-7)
    entry["grad_reach"] = 1.0 if loose or which in ("attention", "norms") else c.reach
    try:
        leaves, outputs = evaluate(c, fn, dense=False)
        if loose and len(c.inputs) > 1:  # sums over broadcast dimensions
            entry["grad_reach"] = max(1.0, max(o.numel() for o in outputs) ** 0.5)
        if c.refused:
            raise AssertionError(f"{name}: torch took what it was to refuse")
        for i, o in enumerate(outputs):
            tensors[f"out{i}"] = o.detach()
            if not c.values_only and o.requires_grad:
                tensors[f"gout{i}"] = (torch.rand(o.shape, generator=c.torch_rng, dtype=torch.float64) * 2 - 1).to(DTYPES[out_dtype])
        try:
            backward(outputs, tensors)
        except RuntimeError:  # some derivatives of torch need contiguous inputs
            leaves, outputs = evaluate(c, fn, dense=True)
            backward(outputs, tensors)
    except (RuntimeError, IndexError, ValueError):
        if not c.refused:
            raise
        return dict(entry, refused=True), tensors
    if any(what.startswith("gout") for what in tensors):
        for i, leaf in enumerate(leaves):
            if leaf.requires_grad:
                tensors[f"grad{i}"] = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
        if c.dtype == "f64" and op not in NO_SECOND:
            second(leaves, outputs, tensors, c)
    return entry, tensors


def evaluate(c, fn, dense):
    leaves, inputs = [], []
    for i, t in enumerate(c.inputs):
        leaves.append(t.double().clone().requires_grad_(i not in getattr(c, "no_grad", ())) if t.is_floating_point() else t)
        x = applied(leaves[-1], c.views.get(f"in{i}", []))
        inputs.append(x.contiguous() if dense else x)
    out = fn(*inputs)
    return leaves, list(out) if isinstance(out, tuple) else [out]


NO_SECOND = ("ctc_loss", "trigamma")


def second(leaves, outputs, tensors, c):
    """The derivative of the gradients in a random direction; None if torch has none, or if it is not finite."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    along = [torch.rand(leaf.shape, generator=c.torch_rng, dtype=torch.float64) * 2 - 1 for leaf in wanted]
    try:
        parts = [(o * tensors[f"gout{i}"].double()).sum() for i, o in enumerate(outputs) if f"gout{i}" in tensors]
        grads = torch.autograd.grad(sum(parts), wanted, create_graph=True, allow_unused=True)
        slopes = [(g * v).sum() for g, v in zip(grads, along) if g is not None and g.requires_grad]
        seconds = torch.autograd.grad(sum(slopes), wanted, allow_unused=True) if slopes else [None] * len(wanted)
    except RuntimeError:
        return
    seconds = [torch.zeros_like(leaf) if s is None else s for leaf, s in zip(wanted, seconds)]
    if not all(s.isfinite().all() for s in seconds):
        return
    places = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
    for i, v, s in zip(places, along, seconds):
        tensors[f"along{i}"], tensors[f"second{i}"] = v, s + 0.0


def backward(outputs, tensors):
    parts = [(o * tensors[f"gout{i}"].double()).sum() for i, o in enumerate(outputs) if f"gout{i}" in tensors]
    if parts:
        sum(parts).backward(retain_graph=True)


def save(path, cases):
    header, blobs, at = {"__metadata__": {"cases": json.dumps([entry for entry, _ in cases])}}, [], 0
    for entry, tensors in cases:
        for what, t in tensors.items():
            t = t.contiguous()
            raw = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
            header[f"{entry['name']}/{what}"] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
            blobs.append(raw)
            at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner", help="the program of the golden cases: build/tests/golden")
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="of families and operations")
    parser.add_argument("--keep", help="a folder for the cases, which otherwise go")
    o = parser.parse_args()
    passed = failed = 0
    counts, problems = collections.Counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        for first in range(0, o.cases, 2000):
            folder = pathlib.Path(o.keep or scratch) / f"cases-{first}"
            folder.mkdir(parents=True, exist_ok=True)
            cases = [case for case in (make(o.seed, k, o.only) for k in range(first, min(first + 2000, o.cases))) if case]
            if not cases:
                continue
            counts.update(entry["name"].split("-")[0] for entry, _ in cases)
            save(folder / "cases.safetensors", cases)
            r = subprocess.run([o.runner], capture_output=True, text=True, env=dict(os.environ, LOCKSTEP_GOLDEN_DIR=str(folder)))
            lines = r.stdout.strip().split("\n")
            found = re.fullmatch(r"(\d+) passed, (\d+) failed", lines[-1])
            if not found:
                sys.exit(f"{o.runner} ended with {r.returncode}:\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
            passed, failed = passed + int(found[1]), failed + int(found[2])
            problems += [line for line in lines if line.startswith("FAIL")]
    print(", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    for line in problems[:100]:
        number = line.split()[2].rstrip(":").split("-")[-1]
        print(f"{line[:400]}   (--seed {o.seed}, case {number})")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
