#!/usr/bin/env python3
"""Training GPT-2 124M on a card in PyTorch, bf16: a line of JSON for the eager and for the compiled model.

    python3 bench/cuda_gpt.py --batch 16 --accumulate 1 --steps 20
    python3 bench/cuda_gpt.py --tokenizer FOLDER     writes a tokenizer of 50,257 tokens, most of which no text has

Attention is scaled_dot_product_attention, the optimizer fused AdamW, products run in autocast: what a user of PyTorch would write.
"""
import argparse
import json
import os
import statistics
import time


def tokenizer(folder):
    """Of single bytes in GPT-2's spelling, with unused tokens up to its number."""
    os.makedirs(folder, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(rest))]
    tokens += [f"<unused {i}>" for i in range(len(tokens), 50257)]
    with open(f"{folder}/vocab.json", "w", encoding="utf-8") as file:
        json.dump({token: i for i, token in enumerate(tokens)}, file)
    with open(f"{folder}/merges.txt", "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", metavar="FOLDER")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default="12x768x12", help="layers, width, heads")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=["eager", "compiled"])
    o = parser.parse_args()
    if o.tokenizer:
        return tokenizer(o.tokenizer)
    import torch
    from torch import nn
    import torch.nn.functional as F

    layers, width, heads = map(int, o.model.split("x"))
    vocab = 50304  # padded for tensor cores, as everybody does

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            rows, tokens, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(rows, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(rows, tokens, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(o.context, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, ids, target):
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.t()
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    on_card = o.device.startswith("cuda")
    for kind in [o.only] if o.only else ["eager", "compiled"]:
        model = Gpt().to(o.device)
        optimizer = torch.optim.AdamW(model.parameters(), 6e-4, (0.9, 0.95), weight_decay=0.1, fused=on_card)
        loss_of = torch.compile(model) if kind == "compiled" else model
        ids = torch.randint(0, 256, (o.batch, o.context + 1), device=o.device)
        seconds = []
        for _ in range(5 + o.steps):  # the first five compile and warm up
            start = time.perf_counter()
            for _ in range(o.accumulate):
                with torch.autocast(o.device.split(":")[0], torch.bfloat16):
                    loss = loss_of(ids[:, :-1], ids[:, 1:]) / o.accumulate
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            seconds.append(time.perf_counter() - start)
        step = statistics.median(seconds[5:])
        peak = torch.cuda.max_memory_allocated() / 2**30 if on_card else 0
        print(json.dumps({"name": f"PyTorch {kind}", "ms": round(1e3 * step, 2), "tokens_per_second": round(o.batch * o.context * o.accumulate / step), "peak_gib": round(peak, 2)}), flush=True)


if __name__ == "__main__":
    main()
