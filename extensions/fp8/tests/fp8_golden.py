#!/usr/bin/env python3
"""Golden values of 8-bit floats and delayed scaling, made with PyTorch: fp8_golden.py FILE
(golden/fp8.safetensors). training_test.cpp reads them. Exit code 77 without PyTorch.

PyTorch's e4m3 turns values that are too large into NaN, so they are clamped before, as Transformer Engine saturates.
The scaling is a reference of its DelayedScaling: scale = largest value of the format / largest of the history /
2^margin; it stays unchanged if the history's largest is 0.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/interop"))
from checks import need  # noqa: E402

need("torch", "numpy", "safetensors")
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

torch.manual_seed(8)
FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


def cast(x, name):
    dtype, largest = FORMATS[name]
    return x.clamp(-largest, largest).to(dtype)


def halfway(name):
    """The midpoint between every two neighboring codes, and one f32 to either side."""
    dtype, _ = FORMATS[name]
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()].sort().values.unique()
    middle = (numbers[1:] + numbers[:-1]) / 2
    return torch.cat([middle, middle.nextafter(torch.tensor(1e9)), middle.nextafter(torch.tensor(-1e9))])


class Scaling:
    """The scaling of one tensor."""

    def __init__(self, name, margin, length, most_recent):
        self.name, self.margin, self.length, self.most_recent = name, margin, length, most_recent
        self.scale = torch.tensor(1.0)
        self.history, self.amax = [], torch.tensor(0.0)

    def cast(self, x):
        self.amax = torch.maximum(self.amax, x.abs().max())
        codes = cast(x * self.scale, self.name)
        return codes.double() * (1 / self.scale).double()

    def update(self):
        self.history = [self.amax, *self.history][: self.length]
        amax = self.history[0] if self.most_recent else torch.stack(self.history).max()
        if amax > 0:
            self.scale = torch.tensor(FORMATS[self.name][1]) / amax / 2**self.margin
        self.amax = torch.tensor(0.0)


RECIPES = [(0, 3, False, True), (1, 3, False, False), (2, 4, True, True), (0, 1024, False, True)]


def main():
    tensors = {}
    for name, (dtype, _) in FORMATS.items():
        tensors[f"numbers_{name}"] = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        x = torch.cat([halfway(name), torch.randn(2000) * torch.logspace(-8, 6, 2000),
                       torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 447.9, 464, 465, 57344, 61440, 70000, float("inf"), -float("inf"), float("nan")])])
        tensors[f"x_{name}"] = x
        tensors[f"codes_{name}"] = cast(x, name).view(torch.uint8)
    # Two micro-batches per step, whose values grow, shrink and vanish.
    sizes = torch.tensor([1, 3, 0.5, 1e-3, 0, 0, 40, 2e4, 1e-6, 1, 1, 1])
    x, g = torch.randn(len(sizes), 2, 16, 32), torch.randn(len(sizes), 2, 16, 16)
    x, g = x * sizes[:, None, None, None], g * sizes.flip(0)[:, None, None, None] * 10
    w = torch.randn(len(sizes), 16, 32) * (1 + sizes.sqrt())[:, None, None]
    tensors |= {"x": x, "g": g, "w": w}
    for number, (margin, length, most_recent, hybrid) in enumerate(RECIPES):
        roles = [Scaling("e4m3", margin, length, most_recent) for _ in range(2)] + [Scaling("e5m2" if hybrid else "e4m3", margin, length, most_recent)]
        made = {"scale": [], "y": [], "dx": [], "dw": []}
        for step in range(len(sizes)):
            for micro in range(2):
                x8, w8, g8 = roles[0].cast(x[step, micro]), roles[1].cast(w[step]), roles[2].cast(g[step, micro])
            made["y"].append((x8 @ w8.T).float())  # of the second micro-batch
            made["dx"].append((g8 @ w8).float())
            made["dw"].append((g8.T @ x8).float())
            for role in roles:
                role.update()
            made["scale"].append(torch.stack([role.scale for role in roles]))
        for name, values in made.items():
            tensors[f"{number}.{name}"] = torch.stack(values)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[1])


main()
