#!/usr/bin/env python3
"""Writes extensions/hugging_face/tests/golden/models/window_*: a tiny Mistral and a tiny Qwen 2 with attention windows narrower than the
text, and Transformers' results in f64 (eager attention): logits, loss, all gradients, greedy texts.

Usage: window_golden.py (needs torch, transformers and safetensors)
"""
import json
import pathlib

from checks import need

need("torch", "transformers", "safetensors")
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "extensions/hugging_face/tests/golden/models"
SIZES = dict(vocab_size=29, hidden_size=16, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, initializer_range=0.25, attn_implementation="eager", bos_token_id=1, eos_token_id=None)
MODELS = {
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=5)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, num_hidden_layers=3, sliding_window=7, use_sliding_window=True,
                                            max_window_layers=1)),
}


def main():
    out = {}
    for name, (kind, config) in MODELS.items():
        torch.manual_seed(5)
        model = kind(config).eval()
        model.save_pretrained(GOLDEN / f"window_{name}")
        (GOLDEN / f"window_{name}" / "generation_config.json").unlink()
        model = model.double()
        ids = torch.randint(0, config.vocab_size, (2, 24))
        result = model(ids, labels=ids)
        result.loss.backward()
        values = {"input_ids": ids, "logits": result.logits.detach(), "loss": result.loss.detach()}
        values.update({"grad/" + key: p.grad for key, p in model.named_parameters()})
        values["greedy"] = model.generate(ids[:1, :5], max_new_tokens=30, do_sample=False)
        top = model(values["greedy"]).logits[0, 4:-1].topk(2).values
        assert (top[:, 0] - top[:, 1]).min() > 1e-3, "the two likeliest are too close to compare texts"
        model.config.sliding_window += 1  # one more key must make a difference
        assert (model(ids).logits - result.logits).abs().max() > 0.01
        out.update({f"{name}/{key}": (value if value.dtype == torch.int64 else value.float()).contiguous()
                    for key, value in values.items()})
        print(name, json.dumps({"loss": result.loss.item(), "margin": (top[:, 0] - top[:, 1]).min().item()}))
    save_file(out, GOLDEN / "window.safetensors")


if __name__ == "__main__":
    main()
