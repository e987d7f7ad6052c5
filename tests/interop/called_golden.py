#!/usr/bin/env python3
"""Golden cases of transformers, convolutions and pooling in all dimensions, and resampling, made with PyTorch:
called_golden.py ROOT writes the files of FILES below the root of the repository.

As in layers_golden.py, results are in f64 from inputs in f32, and torch_f32_err is the error of PyTorch's own f32.
Names and options are ours; the golden_cases.cpp of extensions read them. Exit code
77 without PyTorch.
"""
import copy
import json
import math
import pathlib
import sys

from checks import need

need("torch", "numpy", "safetensors")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

torch.manual_seed(27)


def draw(*shape):
    return torch.randn(*shape)


def one(module, *more, **names):
    return module(*more, **names)


CASES = []


def case(kind, args, inputs, call=one, module=None, **extra):
    """extra: tensors that are not inputs on the tape."""
    module = module or nn.Module()
    for p in module.parameters():
        p.data.copy_(torch.randn_like(p) * (0.4 if p.dim() > 1 else 0.7))
    CASES.append((kind, args, inputs, call, module, extra))


def hidden(*shape):
    """A bool mask that leaves at least one key visible in every row."""
    mask = torch.rand(*shape) < 0.4
    mask[..., 0] = False
    return mask


def attention():
    for wanted in ("none", "mean", "of_heads"):
        call = lambda m, q, k, v, w=wanted, **masks: m(q, k, v, need_weights=w != "none", average_attn_weights=w == "mean", **masks)  # noqa: E731
        module = lambda bias=True: nn.MultiheadAttention(6, 2, bias=bias, batch_first=True)  # noqa: E731
        args = {"embed": 6, "heads": 2, "weights": wanted, "cross": True}
        case("MultiHeadAttention", args, [draw(2, 3, 6), draw(2, 5, 6), draw(2, 5, 6)], call, module())
        case("MultiHeadAttention", args, [draw(2, 3, 6), draw(2, 5, 6), draw(2, 5, 6)], call, module(), attn_mask=hidden(3, 5), key_padding_mask=hidden(2, 5))
        case("MultiHeadAttention", {**args, "bias": False}, [draw(2, 3, 6), draw(2, 4, 6), draw(2, 4, 6)], call, module(False), attn_mask=draw(3, 4), key_padding_mask=draw(2, 4))
        case("MultiHeadAttention", args, [draw(1, 1, 6), draw(1, 1, 6), draw(1, 1, 6)], call, module(), attn_mask=draw(2, 1, 1))
        causal = lambda m, q, k, v, w=wanted: m(q, k, v, need_weights=w != "none", average_attn_weights=w == "mean", attn_mask=~torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril())  # noqa: E731
        case("MultiHeadAttention", {**args, "causal": True}, [draw(2, 4, 6), draw(2, 4, 6), draw(2, 4, 6)], causal, module())
        case("MultiHeadAttention", {**args, "causal": True}, [draw(2, 3, 6), draw(2, 5, 6), draw(2, 5, 6)], causal, module())
        case("MultiHeadAttention", {**args, "cross": False}, [draw(2, 4, 6)], lambda m, x, c=call, **masks: c(m, x, x, x, **masks), module(), attn_mask=hidden(4, 4))


def transformers():
    square = nn.Transformer.generate_square_subsequent_mask
    for norm_first, activation, batch_first, bias in ((False, "relu", False, True), (True, "gelu", True, True), (True, "relu", False, False), (False, "gelu", True, True)):
        layer = dict(dim_feedforward=6, dropout=0, activation=activation, batch_first=batch_first, norm_first=norm_first, bias=bias)
        args = {"width": 4, "heads": 2, "inner": 6, "activation": activation, "batch_first": batch_first, "norm_first": norm_first, "bias": bias}
        tokens = lambda t, b=3: draw(b, t, 4) if batch_first else draw(t, b, 4)  # noqa: E731
        encoder, decoder = (lambda: nn.TransformerEncoderLayer(4, 2, **layer)), (lambda: nn.TransformerDecoderLayer(4, 2, **layer))
        case("TransformerEncoderLayer", args, [tokens(5)], one, encoder())
        case("TransformerEncoderLayer", args, [tokens(5)], one, encoder(), src_mask=hidden(5, 5), src_key_padding_mask=hidden(3, 5))
        case("TransformerEncoderLayer", args, [tokens(4)], one, encoder(), src_mask=draw(6, 4, 4))
        case("TransformerEncoderLayer", {**args, "source_causal": True}, [tokens(4)], lambda m, x: m(x, src_mask=square(4, dtype=x.dtype), is_causal=True), encoder())
        case("TransformerEncoderLayer", args, [draw(4, 4)], one, encoder(), src_mask=draw(4, 4))
        case("TransformerDecoderLayer", args, [tokens(4), tokens(6)], one, decoder())
        case("TransformerDecoderLayer", args, [tokens(4), tokens(6)], one, decoder(), tgt_mask=draw(4, 4), memory_mask=hidden(4, 6), tgt_key_padding_mask=hidden(3, 4), memory_key_padding_mask=hidden(3, 6))
        case("TransformerDecoderLayer", {**args, "target_causal": True}, [tokens(4), tokens(1)], lambda m, x, y: m(x, y, tgt_mask=square(4, dtype=x.dtype), tgt_is_causal=True), decoder())
        case("TransformerDecoderLayer", args, [draw(2, 4), draw(3, 4)], one, decoder())
        case("TransformerEncoder", {**args, "layers": 2, "norm": norm_first}, [tokens(3)], one, nn.TransformerEncoder(encoder(), 2, nn.LayerNorm(4, bias=bias) if norm_first else None, enable_nested_tensor=False), mask=hidden(3, 3))
        case("TransformerDecoder", {**args, "layers": 2, "norm": norm_first}, [tokens(3), tokens(2)], one, nn.TransformerDecoder(decoder(), 2, nn.LayerNorm(4, bias=bias) if norm_first else None), memory_mask=draw(3, 2))
        full = nn.Transformer(4, 2, 2, 1, **{k: v for k, v in layer.items()})
        case("Transformer", {**args, "encoder_layers": 2, "decoder_layers": 1, "target_causal": True}, [tokens(5), tokens(3)],
             lambda m, x, y, **masks: m(x, y, tgt_mask=square(3, dtype=x.dtype), tgt_is_causal=True, **masks), full, src_key_padding_mask=hidden(3, 5), memory_key_padding_mask=hidden(3, 5))


def convolutions():
    for args, shape in (({}, (2, 4, 3, 4, 5)), ({"stride": [2, 1, 3], "padding": [1, 2, 0]}, (1, 4, 4, 5, 6)), ({"kernel": [2, 3, 1], "dilation": [2, 1, 2], "groups": 2}, (2, 4, 4, 3, 3)), ({"kernel": 1, "bias": False}, (2, 4, 2, 1, 3)),
                        ({"groups": 4, "padding": 2, "dilation": 2}, (1, 4, 2, 3, 1)), ({"kernel": [3, 1, 1], "padding": [2, 0, 0], "stride": [2, 1, 1]}, (2, 4, 1, 2, 2))):
        k = args.get("kernel", 3)
        options = {n: v for n, v in args.items() if n != "kernel"}
        case("Conv3d", {"in": 4, "out": 8, "kernel": k, **options}, [draw(*shape)], one, nn.Conv3d(4, 8, k, **options))
    for args, shape in (({}, (2, 4, 2, 2, 3)), ({"stride": [2, 1, 3], "padding": [1, 2, 0], "output_padding": [1, 0, 2]}, (1, 4, 3, 3, 2)), ({"kernel": [2, 3, 1], "dilation": [2, 1, 2], "groups": 2, "output_padding": [1, 0, 1]}, (2, 4, 2, 3, 2)),
                        ({"kernel": 1, "bias": False, "stride": 2}, (2, 4, 2, 1, 3)), ({"groups": 4, "padding": [2, 1, 1], "stride": [1, 2, 2]}, (1, 4, 3, 2, 2)), ({"kernel": [5, 1, 1], "padding": [3, 0, 0]}, (1, 4, 3, 1, 1))):
        k = args.get("kernel", 3)
        options = {n: v for n, v in args.items() if n != "kernel"}
        case("ConvTranspose3d", {"in": 4, "out": 8, "kernel": k, **options}, [draw(*shape)], one, nn.ConvTranspose3d(4, 8, k, **options))
    for args, shape in (({}, (2, 4, 5)), ({"stride": 3, "padding": 1, "output_padding": 2}, (2, 4, 3)), ({"groups": 2, "dilation": 2, "bias": False}, (1, 4, 1))):
        case("ConvTranspose1d", {"in": 4, "out": 6, "kernel": 3, **args}, [draw(*shape)], one, nn.ConvTranspose1d(4, 6, 3, **args))


def ties(*shape):
    """Values of which many are equal."""
    return (draw(*shape) * 1.2).round()


def pools():
    sizes = {1: (2, 3, 7), 2: (2, 3, 6, 5), 3: (1, 2, 5, 4, 6)}
    for n, shape in sizes.items():
        for args in ({}, {"kernel": 3, "stride": 1, "padding": 1}, {"kernel": 2, "stride": 2, "ceil_mode": True}, {"kernel": 2, "stride": 1, "dilation": 2}):
            k = args.get("kernel", 2)
            options = {a: v for a, v in args.items() if a != "kernel"}
            module = getattr(nn, f"MaxPool{n}d")(k, return_indices=True, **options)
            case(f"MaxPool{n}d", {**args, "kernel": k, "indices": True}, [draw(*shape)], one, module)
            case(f"MaxPool{n}d", {**args, "kernel": k, "indices": True}, [ties(*shape)], one, module)
            if "dilation" not in args:
                case(f"AvgPool{n}d", {**args, "kernel": k}, [draw(*shape)], one, getattr(nn, f"AvgPool{n}d")(k, **options))
        case(f"AvgPool{n}d", {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}, [draw(*shape)], one, getattr(nn, f"AvgPool{n}d")(3, 2, 1, True, False))
        case(f"LPPool{n}d", {"p": 2, "kernel": 2}, [draw(*shape)], one, getattr(nn, f"LPPool{n}d")(2, 2))
        case(f"LPPool{n}d", {"p": 1.5, "kernel": 3, "stride": 1}, [draw(*shape).abs() + 0.1], one, getattr(nn, f"LPPool{n}d")(1.5, 3, 1))
        for output in (1, 3, 8):
            case(f"AdaptiveMaxPool{n}d", {"output": output, "indices": True}, [draw(*shape)], one, getattr(nn, f"AdaptiveMaxPool{n}d")(output, return_indices=True))
            case(f"AdaptiveMaxPool{n}d", {"output": output, "indices": True}, [ties(*shape)], one, getattr(nn, f"AdaptiveMaxPool{n}d")(output, return_indices=True))
            if n != 2:
                case(f"AdaptiveAvgPool{n}d", {"output": output}, [draw(*shape)], one, getattr(nn, f"AdaptiveAvgPool{n}d")(output))
        unpool, even = getattr(nn, f"MaxUnpool{n}d")(2), shape[:2] + tuple(s // 2 * 2 for s in shape[2:])
        pooled, at = getattr(F, f"max_pool{n}d")(draw(*even), 2, return_indices=True)
        case(f"MaxUnpool{n}d", {"kernel": 2}, [pooled], lambda m, x, indices: m(x, indices), unpool, indices=at)
        pooled, at = getattr(F, f"max_pool{n}d")(draw(*shape), 2, return_indices=True)
        case(f"MaxUnpool{n}d", {"kernel": 2, "sizes": list(shape[2:])}, [pooled], lambda m, x, indices, s=shape: m(x, indices, output_size=s[2:]), unpool, indices=at)
    case("AdaptiveAvgPool3d", {"output": [2, -1, 3]}, [draw(1, 2, 3, 4, 2)], one, nn.AdaptiveAvgPool3d((2, None, 3)))
    case("MaxPool3d", {"kernel": [1, 2, 3], "stride": [1, 2, 1], "padding": [0, 1, 1], "indices": True}, [draw(1, 2, 2, 3, 4)], one, nn.MaxPool3d((1, 2, 3), (1, 2, 1), (0, 1, 1), return_indices=True))


def resampling():
    names = {"nearest": ["nearest"] * 3, "nearest_exact": ["nearest-exact"] * 3, "linear": ["linear", "bilinear", "trilinear"], "cubic": [None, "bicubic", None], "area": ["area"] * 3}
    shapes = {1: (1, 2, 7), 2: (1, 2, 5, 6), 3: (1, 1, 3, 4, 5)}
    setting_sets = [{"size": 1}, {"size": 5}, {"size": 9}, {"scale": 2.0}, {"scale": 0.6}, {"scale": 1.7}, {"scale": 1.6, "recompute_scale": True}]

    def add(mode, n, args, shape):
        theirs = {"mode": names[mode][n - 1]}
        for ours, their in (("size", "size"), ("scale", "scale_factor"), ("align_corners", "align_corners"), ("antialias", "antialias"), ("recompute_scale", "recompute_scale_factor")):
            if ours in args:
                theirs[their] = args[ours]
        case("interpolate", {"mode": mode, **args}, [draw(*shape)], lambda m, x, o=theirs: F.interpolate(x, **o))

    for mode in names:
        for n, shape in shapes.items():
            if not names[mode][n - 1]:
                continue
            for settings in setting_sets if n < 3 else [setting_sets[1], setting_sets[3], setting_sets[4]]:
                add(mode, n, settings, shape)
                if mode in ("linear", "cubic") and not settings.get("recompute_scale"):
                    add(mode, n, {**settings, "align_corners": True}, shape)
                    if n == 2:
                        add(mode, n, {**settings, "antialias": True}, shape)
                        add(mode, n, {**settings, "antialias": True, "align_corners": True}, shape)
            if n > 1:
                add(mode, n, {"size": [9, 2, 4][:n]}, shape)
                add(mode, n, {"scale": [0.5, 3.0, 1.0][:n]}, shape)
            add(mode, n, {"size": 4}, (1, 1) + (1,) * n)
            if mode == "linear":
                add(mode, n, {"scale": 1.1}, shape)  # the size does not change, so neither do the values
    for n, places in ((2, (4, 3)), (3, (2, 3, 2))):
        for mode, theirs in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
            for padding in ("zeros", "border", "reflection"):
                for align in (False, True):
                    if n == 3 and mode == "cubic":
                        continue
                    shape = ((2, 3, 5, 6), (2, 2, 3, 4, 5))[n - 2]
                    case("grid_sample", {"mode": mode, "padding": padding, "align_corners": align}, [draw(*shape), draw(2, *places, n) * 1.3],
                         lambda m, x, g, o=(theirs, padding, align): F.grid_sample(x, g, *o))
    corners = torch.tensor([[-1.0, -1], [1, 1], [-1, 1], [0, 0], [3, -1], [1, -5]]).view(1, 2, 3, 2)
    for padding in ("zeros", "border", "reflection"):
        for align in (False, True):
            case("grid_sample", {"mode": "linear", "padding": padding, "align_corners": align}, [draw(1, 2, 3, 4), corners], lambda m, x, g, o=(padding, align): F.grid_sample(x, g, "bilinear", *o))
            case("grid_sample", {"mode": "linear", "padding": padding, "align_corners": align}, [draw(1, 2, 1, 1), corners], lambda m, x, g, o=(padding, align): F.grid_sample(x, g, "bilinear", *o))
    for shape in ((2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 3, 4), (1, 1, 1, 1, 1)):
        for align in (False, True):
            case("affine_grid", {"shape": list(shape), "align_corners": align}, [draw(shape[0], len(shape) - 2, len(shape) - 1)], lambda m, t, o=(shape, align): F.affine_grid(t, *o))
    for args, shape in (({"kernel": [2, 3]}, (2, 3, 4, 5)), ({"kernel": [3, 3], "padding": [1, 2], "stride": [2, 1]}, (1, 2, 5, 4)), ({"kernel": [2, 2], "dilation": [2, 1], "stride": [1, 3]}, (2, 1, 4, 5)), ({"kernel": [1, 1]}, (1, 2, 1, 1))):
        options = {k: tuple(v) for k, v in args.items() if k != "kernel"}
        unfold = nn.Unfold(tuple(args["kernel"]), **options)
        case("unfold", args, [draw(*shape)], one, unfold)
        columns = unfold(draw(*shape))
        case("fold", {**args, "size": list(shape[2:])}, [draw(*columns.shape)], one, nn.Fold(shape[2:], tuple(args["kernel"]), **options))


def others():
    index, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 0]), torch.tensor([0, 4, 4, 7])
    for args, given in (({}, (index, offsets)), ({"padding_index": 2}, (index, offsets)), ({}, (index.view(3, 3),)), ({"padding_index": 4}, (index.view(3, 3),)), ({"last_offset": True}, (index, torch.tensor([0, 2, 9]))), ({}, (index[:0], torch.tensor([0, 0])))):
        module = nn.EmbeddingBag(10, 3, mode="max", padding_idx=args.get("padding_index"), include_last_offset=args.get("last_offset", False))
        case("EmbeddingBag", {"num": 10, "dim": 3, **args}, [], one, module, **dict(zip(("input", "offsets"), given)))
    for args in ({"cutoffs": [3]}, {"cutoffs": [2, 5, 8], "div_value": 2.0, "head_bias": True}):
        options = {k: v for k, v in args.items() if k != "cutoffs"}
        module = lambda: nn.AdaptiveLogSoftmaxWithLoss(12, 10, args["cutoffs"], **options)  # noqa: E731
        case("AdaptiveLogSoftmaxWithLoss", {"in": 12, "classes": 10, **args}, [draw(7, 12)], one, module(), target_=torch.tensor([0, 2, 9, 5, 3, 8, 1]))
        case("AdaptiveLogSoftmaxWithLoss", {"in": 12, "classes": 10, **args}, [draw(3, 12)], one, module(), target_=torch.tensor([0, 1, 1]))
        case("AdaptiveLogSoftmaxWithLoss", {"in": 12, "classes": 10, **args}, [draw(12)], one, module(), target_=torch.tensor(7))
        case("AdaptiveLogSoftmaxWithLoss", {"in": 12, "classes": 10, "log_prob": True, **args}, [draw(4, 12)], lambda m, x: m.log_prob(x), module())


def run(made, dtype, gout):
    _, _, inputs, call, module, extra = made
    module = copy.deepcopy(module).to(dtype)
    given = [x.detach().to(dtype, copy=True).requires_grad_() for x in inputs]
    outs = call(module, *given, **{k: v.to(dtype) if v.is_floating_point() else v for k, v in extra.items()})
    outs = [t for t in (outs if isinstance(outs, tuple) else [outs]) if t is not None]
    grad = torch.randn(outs[0].shape).to(dtype) if gout is None else gout.to(dtype)
    outs[0].backward(grad)
    found = {f"out{i}": t for i, t in enumerate(outs)}
    found |= {f"grad_in{i}": x.grad if x.grad is not None else torch.zeros_like(x) for i, x in enumerate(given)}
    found |= {f"grad/{name}": p.grad if p.grad is not None else torch.zeros_like(p) for name, p in module.named_parameters()}
    return grad, {name: t.detach() for name, t in found.items()}


# What the cases of each file are about.
FILES = {
    "extensions/layers/tests/golden/transformers.safetensors": "transformers",
    "extensions/layers/tests/golden/called.safetensors": "EmbeddingBag, adaptive softmax",
    "extensions/vision/tests/golden/vision.safetensors": "convolutions, pooling, resampling",
}


def file_of(kind):
    transformers, layers, vision = FILES
    return layers if kind in ("EmbeddingBag", "AdaptiveLogSoftmaxWithLoss") else transformers if kind.startswith(("MultiHead", "Transformer")) else vision


def main(root):
    for family in (attention, transformers, convolutions, pools, resampling, others):
        family()
    tensors, listed = {path: {} for path in FILES}, {path: [] for path in FILES}
    for number, made in enumerate(CASES):
        kind, args, inputs, _, module, extra = made
        name = f"{kind}_{number}"
        gout, exact = run(made, torch.float64, None)
        gout = gout.float()
        _, narrow = run(made, torch.float32, gout)
        error = max((float(((narrow[n].double() - t).abs() / t.abs().clamp(min=1)).nan_to_num(0, 0, 0).max()) for n, t in exact.items() if t.is_floating_point() and t.numel()), default=0.0)
        assert error < 1e-3 and all(math.isfinite(v) for v in (error,)), (name, error)
        listed[file_of(kind)].append({"name": name, "called": kind, "args": args, "torch_f32_err": error})
        mine = {"gout": gout, **exact}
        mine |= {f"in{i}": x for i, x in enumerate(inputs)} | {f"extra/{k}": v for k, v in extra.items()}
        mine |= {f"param/{n}": p for n, p in module.named_parameters()}
        tensors[file_of(kind)] |= {f"{name}/{what}": (t.detach().float() if t.is_floating_point() else t.detach()).contiguous().clone() for what, t in mine.items()}
    for path, about in FILES.items():
        metadata = {"format": "golden-1", "about": about, "made_with": f"torch {torch.__version__}, tests/interop/called_golden.py"}
        save_file(tensors[path], pathlib.Path(root) / path, {**metadata, "cases": json.dumps(listed[path])})
        print(f"{path}: {len(listed[path])} cases, {len(tensors[path])} tensors")


if __name__ == "__main__":
    main(sys.argv[1])
