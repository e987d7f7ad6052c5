#!/usr/bin/env python3
"""Golden cases of layers, made with PyTorch (2.15.0): layers_golden.py ROOT writes the files of FILES below the root of
the repository.

Results are computed in f64 from inputs in f32 and rounded once; torch_f32_err is the error of PyTorch's own f32. Names
and options of layers are ours, names of tensors are PyTorch's. The golden_cases.cpp of extensions read them. Exit
code 77 without PyTorch.
"""
import copy
import json
import pathlib
import sys

from checks import need

need("torch", "numpy", "safetensors")
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

torch.manual_seed(26)
INF = float("inf")


def draw(*shape):
    return torch.randn(*shape) * 1.5


def kinks(*more):
    """Values where functions have kinks, and others."""
    return torch.cat([torch.tensor([0.0, 0.5, -0.5, 0.75, -0.75, 1, -1, 3, -3, 6, 6.5, -20, 30, 90, -90, *more]), draw(25 - len(more))]).view(5, 8)


def randomized(module):
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.dtype.is_floating_point and not name.endswith(("_u", "_v", "running_var", "original0")):
            tensor.data.copy_(torch.randn_like(tensor) * 0.7)
        elif name.endswith(("running_var", "original0")):
            tensor.data.copy_(torch.rand_like(tensor) + 0.5)
    return module


def image(*shape):
    return [draw(*shape)]


POINTWISE = [
    ("ReLU6", nn.ReLU6(), {}), ("SELU", nn.SELU(), {}), ("CELU", nn.CELU(), {}), ("CELU", nn.CELU(0.4), {"alpha": 0.4}),
    ("Hardsigmoid", nn.Hardsigmoid(), {}), ("LogSigmoid", nn.LogSigmoid(), {}), ("Tanhshrink", nn.Tanhshrink(), {}), ("Softsign", nn.Softsign(), {}),
    ("RReLU", nn.RReLU().eval(), {}), ("RReLU", nn.RReLU(0.1, 0.2).eval(), {"lower": 0.1, "upper": 0.2}), ("PReLU", nn.PReLU(), {}),
    ("Hardtanh", nn.Hardtanh(), {}), ("Hardtanh", nn.Hardtanh(-0.5, 3), {"low": -0.5, "high": 3}),
    ("Hardshrink", nn.Hardshrink(), {}), ("Hardshrink", nn.Hardshrink(0.75), {"lambda": 0.75}),
    ("Softshrink", nn.Softshrink(), {}), ("Softshrink", nn.Softshrink(0.75), {"lambda": 0.75}),
    ("Threshold", nn.Threshold(0.5, -7), {"threshold": 0.5, "value": -7}), ("GLU", nn.GLU(), {}),
    ("Dropout1d", nn.Dropout1d().eval(), {}), ("AlphaDropout", nn.AlphaDropout().eval(), {}), ("Identity", nn.Identity(), {}),
]
MIXED = [
    ("PReLU", nn.PReLU(3, 0.1), {"channels": 3}, image(2, 3, 4, 5)), ("PReLU", nn.PReLU(3), {"channels": 3}, image(4, 3)),
    ("GLU", nn.GLU(1), {"dim": 1}, image(2, 6, 3)),
    *[(kind, getattr(nn, kind)(dim), {"dim": dim}, image(3, 4, 5)) for kind in ("Softmin", "LogSoftmax") for dim in (1, -1)],
    ("Softmax2d", nn.Softmax2d(), {}, image(2, 3, 4, 5)), ("Softmax2d", nn.Softmax2d(), {}, image(3, 4, 5)),
    ("Unflatten", nn.Unflatten(1, (2, -1)), {"dim": 1, "shape": [2, -1]}, image(3, 8, 2)), ("Unflatten", nn.Unflatten(-1, (2, 1, 3)), {"dim": -1, "shape": [2, 1, 3]}, image(2, 6)),
    *[("PixelShuffle", nn.PixelShuffle(f), {"factor": f}, image(*shape)) for f, shape in ((2, (2, 8, 3, 4)), (3, (9, 2, 3)), (2, (2, 1, 3, 4, 1, 2)))],
    *[("PixelUnshuffle", nn.PixelUnshuffle(f), {"factor": f}, image(*shape)) for f, shape in ((2, (2, 2, 4, 6)), (3, (1, 6, 3)), (1, (2, 3, 2, 2)))],
    ("ChannelShuffle", nn.ChannelShuffle(2), {"groups": 2}, image(2, 6, 3, 2)), ("ChannelShuffle", nn.ChannelShuffle(3), {"groups": 3}, image(2, 6, 4)),
    *[("LocalResponseNorm", nn.LocalResponseNorm(n, **more), {"size": n, **more}, image(*shape)) for n, more, shape in
      ((3, {"alpha": 0.5}, (2, 5, 4)), (2, {"alpha": 0.3, "beta": 0.5, "k": 2.0}, (2, 4, 3, 3)), (5, {}, (1, 3, 2, 2, 2)))],
    *[("CosineSimilarity", nn.CosineSimilarity(dim, eps), {"dim": dim, "eps": eps}, [draw(*a), draw(*b)]) for dim, eps, a, b in
      ((1, 1e-8, (4, 5), (4, 5)), (-1, 1e-3, (2, 3, 4), (3, 4)), (0, 1e-8, (6,), (6,)))],
    ("CosineSimilarity", nn.CosineSimilarity(1, 1.5), {"dim": 1, "eps": 1.5}, [torch.zeros(2, 3), draw(2, 3)]),
    *[("PairwiseDistance", nn.PairwiseDistance(p, keepdim=keep), {"p": "inf" if p == INF else p, "keepdim": keep}, [draw(*a), draw(*b)]) for p, keep, a, b in
      ((2, False, (4, 5), (4, 5)), (1, True, (4, 5), (1, 5)), (3.5, False, (2, 3, 4), (4,)), (INF, False, (4, 5), (4, 5)))],
    *[("Bilinear", nn.Bilinear(3, 4, 5, bias=bias), {"in1": 3, "in2": 4, "out": 5, "bias": bias}, [draw(*lead, 3), draw(*lead, 4)]) for lead, bias in
      (((6,), True), ((2, 3), False), ((), True))],
    *[(f"InstanceNorm{n}d", getattr(nn, f"InstanceNorm{n}d")(3, **torch_options), {"channels": 3, **options}, [draw(*shape) + 2])
      for n, shape, torch_options, options in
      ((1, (2, 3, 5), {}, {}), (1, (3, 5), {"affine": True, "eps": 0.1}, {"affine": True, "eps": 0.1}), (2, (2, 3, 4, 3), {"affine": True}, {"affine": True}),
       (2, (2, 3, 4, 3), {"affine": True, "track_running_stats": True, "momentum": 0.3}, {"affine": True, "track": True, "momentum": 0.3}),
       (3, (2, 3, 2, 3, 2), {"track_running_stats": True}, {"track": True}), (3, (3, 2, 3, 2), {}, {}))],
    ("InstanceNorm2d", nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(), {"channels": 3, "affine": True, "track": True}, image(2, 3, 4, 3)),
    ("WeightNorm", parametrizations.weight_norm(nn.Linear(4, 3)), {"of": "Linear", "in": 4, "out": 3}, image(5, 4)),
    ("WeightNorm", parametrizations.weight_norm(nn.Linear(4, 3), dim=1), {"of": "Linear", "in": 4, "out": 3, "dim": 1}, image(5, 4)),
    ("WeightNorm", parametrizations.weight_norm(nn.Linear(4, 3), dim=None), {"of": "Linear", "in": 4, "out": 3, "dim": -1}, image(5, 4)),
    ("WeightNorm", parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), {"of": "Conv2d", "in": 2, "out": 3}, image(2, 2, 5, 4)),
    ("SpectralNorm", parametrizations.spectral_norm(nn.Linear(4, 3)), {"of": "Linear", "in": 4, "out": 3}, image(5, 4)),
    ("SpectralNorm", parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=3).eval(), {"of": "Linear", "in": 4, "out": 3}, image(5, 4)),
    ("SpectralNorm", parametrizations.spectral_norm(nn.Conv2d(2, 3, 3), n_power_iterations=2, dim=1), {"of": "Conv2d", "in": 2, "out": 3, "iterations": 2, "dim": 1}, image(2, 2, 5, 4)),
]


def bags():
    index, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 0]), torch.tensor([0, 4, 4, 7])
    for mode in ("sum", "mean"):
        for args, inputs in (({}, [index, offsets]), ({"padding_index": 2}, [index, offsets]), ({}, [index.view(3, 3)]), ({"padding_index": 4}, [index.view(3, 3)]),
                             ({"last_offset": True}, [index, torch.tensor([0, 2, 9])]), ({}, [index[:0], torch.tensor([0, 0])])):
            yield mode, args, inputs
    yield "sum", {}, [index, offsets, draw(9)]
    yield "sum", {"padding_index": 2}, [index.view(3, 3), None, draw(3, 3)]


def cases():
    for kind, module, args in POINTWISE:
        clean = kind in ("Softsign", "PReLU", "GLU")  # infinities would become NaN in these
        yield kind, module, args, [kinks() if clean else kinks(INF)]
    yield from ((kind, module, args, inputs) for kind, module, args, inputs in MIXED)
    for mode, args, inputs in bags():
        module = nn.EmbeddingBag(10, 3, mode=mode, padding_idx=args.get("padding_index"), include_last_offset=args.get("last_offset", False))
        yield "EmbeddingBag", module, {"num": 10, "dim": 3, "mode": mode, **args}, inputs


def run(module, inputs, dtype, gout):
    module = copy.deepcopy(module).to(dtype)
    given = [x.to(dtype, copy=True).requires_grad_() if x is not None and x.dtype.is_floating_point else x for x in inputs]
    out = module(*given)
    grad = torch.randn(out.shape).to(dtype) if gout is None else gout.to(dtype)
    out.backward(grad)
    made = {"out0": out}
    made |= {f"grad_in{i}": x.grad for i, x in enumerate(x for x in given if x is not None) if x.grad is not None}
    made |= {f"grad/{name}": p.grad for name, p in module.named_parameters()}
    made |= {f"buf_after/{name}": b for name, b in module.named_buffers()}
    return grad, {name: t.detach() for name, t in made.items()}


# The layers of each file; the first has all others.
FILES = {
    "extensions/layers/tests/golden/more_layers.safetensors": (),
    "extensions/layers/tests/golden/activations.safetensors": ("SELU", "CELU", "Tanhshrink", "Softsign", "Hardtanh", "Hardshrink", "Softshrink", "Threshold", "Softmin", "Softmax2d", "AlphaDropout"),
    "extensions/vision/tests/golden/local_response_norm.safetensors": ("LocalResponseNorm",),
    "extensions/layers/tests/golden/similarity.safetensors": ("Bilinear", "CosineSimilarity", "PairwiseDistance"),
}


def file_of(kind):
    return next((path for path, kinds in FILES.items() if kind in kinds), next(iter(FILES)))


def main(root):
    tensors, listed = {path: {} for path in FILES}, {path: [] for path in FILES}
    for number, (kind, module, args, inputs) in enumerate(cases()):
        name = f"{kind}_{number}"
        randomized(module)
        gout, exact = run(module, inputs, torch.float64, None)
        gout = gout.float()
        _, narrow = run(module, inputs, torch.float32, gout)
        error = max((float(((narrow[n].double() - t).abs() / t.abs().clamp(min=1)).nan_to_num(0, 0, 0).max()) for n, t in exact.items() if t.is_floating_point() and t.numel()), default=0.0)
        listed[file_of(kind)].append({"name": name, "layer": kind, "args": args, "train": module.training, "torch_f32_err": error})
        mine = {"gout": gout, **exact}
        mine |= {f"in{i}": x for i, x in enumerate(x for x in inputs if x is not None)}
        mine |= {f"param/{n}": p for n, p in module.named_parameters()} | {f"buf/{n}": b for n, b in module.named_buffers()}
        tensors[file_of(kind)] |= {f"{name}/{what}": (t.detach().float() if t.is_floating_point() else t.detach()).contiguous().clone() for what, t in mine.items()}
    about = {"format": "golden-1", "about": "layers beyond layers.safetensors", "made_with": f"torch {torch.__version__}, tests/interop/layers_golden.py"}
    for path in FILES:
        save_file(tensors[path], pathlib.Path(root) / path, {**about, "cases": json.dumps(listed[path])})
        print(f"{path}: {len(listed[path])} cases, {len(tensors[path])} tensors")


if __name__ == "__main__":
    main(sys.argv[1])
