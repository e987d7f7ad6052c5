#!/usr/bin/env python3
"""What bench_everyday does, in PyTorch and torchvision: a line of JSON each with the median time."""
import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--only", default="", help="cases whose name contains this")
parser.add_argument("--jpegs", help="folder with a subfolder of pictures per class")
parser.add_argument("--make", metavar="FOLDER", help="write 64 pictures of 500 x 375 and stop")
parser.add_argument("--seconds", type=float, default=1)
args = parser.parse_args()
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
torch.manual_seed(1)


def timed(name, fn):
    fn()
    times = []
    while sum(times) < args.seconds or len(times) < 3:
        start = time.perf_counter()
        fn()
        times.append(time.perf_counter() - start)
    print(json.dumps({"case": name, "ms": round(1e3 * statistics.median(times), 4)}), flush=True)


def make(folder):
    from torchvision.io import write_jpeg

    os.makedirs(folder + "/a", exist_ok=True)
    for i in range(64):  # smooth, with some grain, as photographs are
        picture = F.interpolate(torch.rand(1, 3, 16, 16), size=(375, 500), mode="bicubic")[0] + 0.03 * torch.randn(3, 375, 500)
        write_jpeg((picture.clamp(0, 1) * 255).byte(), f"{folder}/a/{i:02d}.jpg", 90)


def dcgan():
    def block(conv, i, o, stride, padding, norm, act):
        return [conv(i, o, 4, stride, padding, bias=False)] + ([nn.BatchNorm2d(o)] if norm else []) + ([act] if act else [])

    up, down = [100, 512, 256, 128, 64, 3], [3, 64, 128, 256, 512, 1]
    maker = nn.Sequential(*[m for i in range(5) for m in block(nn.ConvTranspose2d, up[i], up[i + 1], 1 if i == 0 else 2, 0 if i == 0 else 1, i < 4, nn.ReLU() if i < 4 else nn.Tanh())])
    judge = nn.Sequential(*[m for i in range(5) for m in block(nn.Conv2d, down[i], down[i + 1], 1 if i == 4 else 2, 0 if i == 4 else 1, 0 < i < 4, nn.LeakyReLU(0.2) if i < 4 else None)])
    makes, judges = (torch.optim.Adam(m.parameters(), 2e-4, (0.5, 0.999)) for m in (maker, judge))
    real = torch.randn(16, 3, 64, 64)

    def loss(pictures, label):
        return F.binary_cross_entropy_with_logits(judge(pictures).flatten(), torch.full((16,), float(label)))

    def step():
        made = maker(torch.randn(16, 100, 1, 1))
        judges.zero_grad()
        (loss(real, 1) + loss(made.detach(), 0)).backward()
        judges.step()
        makes.zero_grad()
        loss(made, 1).backward()
        makes.step()

    return step


def lstm():
    model, x = nn.LSTM(512, 512, 2), torch.randn(100, 32, 512)

    def step():
        model.zero_grad()
        model(x)[0].sum().backward()

    return step


def bilinear():
    x, g = torch.randn(16, 64, 56, 56, requires_grad=True), torch.randn(16, 64, 112, 112)
    return lambda: torch.autograd.grad(F.interpolate(x, scale_factor=2, mode="bilinear"), x, g)


def line(*shape):
    x = torch.complex(torch.randn(shape), torch.randn(shape))
    return lambda: torch.fft.fft(x)


def svd():
    a = torch.randn(512, 512)
    return lambda: torch.linalg.svd(a, full_matrices=False)


def eigh():
    a = torch.randn(512, 512)
    a = a + a.T
    return lambda: torch.linalg.eigh(a)


def pictures(train):
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()] if train else []
    folder = datasets.ImageFolder(args.jpegs, transforms.Compose(steps + [transforms.ToTensor()] if train else [lambda x: x]))
    return lambda: [folder[i] for i in range(len(folder))]


CASES = {
    "lstm": lstm, "bilinear": bilinear, "fft_2e20": lambda: line(1 << 20), "fft_1000x1024": lambda: line(1000, 1024), "fft_4096x60": lambda: line(4096, 60),
    "svd_512": svd, "eigh_512": eigh, "dcgan": dcgan, "jpeg_read": lambda: pictures(False), "jpeg_train": lambda: pictures(True),
}  # fmt: skip
if args.make:
    make(args.make)
else:
    for name, case in CASES.items():
        if args.only in name and (args.jpegs or "jpeg" not in name):
            timed(name, case())
