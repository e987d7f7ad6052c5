#!/usr/bin/env python3
"""Models that gpt exports load in Transformers and give the same logits there, and vice versa.

GPT-2, and Llama, Mistral and Qwen 2 with each kind of rotary scaling: tiny models, trained here and exported, or
created by Transformers (whole and in shards), compared with `gpt logits`. Exit code 77 (skipped) if torch or
transformers is missing; $PYTHON names another interpreter that may have them.

Usage: hugging_face.py PATH/TO/gpt
"""
import json
import pathlib
import sys
import tempfile

from checks import count, need, run

TOLERANCE = 1e-4
IDS = [84, 104, 101, 32, 115, 97, 109, 101, 32, 98, 105, 116, 115, 10]
SIZES = dict(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn_more": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8, "beta_slow": 2,
                  "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16},
}


def compare(gpt, folder, work, kind):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {key: sorted(names) for key, names in report.items() if names}
    if problems:
        raise RuntimeError(f"Transformers says of {folder}: {problems}")
    if type(model).__name__ != kind:
        raise RuntimeError(f"{folder}: expected a {kind}, got {type(model).__name__}")
    run(gpt, "logits", folder, "--ids", ",".join(map(str, IDS)), "--to", work / "logits.safetensors")
    ours = load_file(work / "logits.safetensors")["logits"].reshape(len(IDS), -1)
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([IDS])).logits[0]
    off = ((ours - theirs).abs() / theirs.abs().clamp(min=1)).max().item()
    if not off <= TOLERANCE:
        raise RuntimeError(f"logits of {folder} differ by {off} (allowed {TOLERANCE})")
    return off


def main(gpt):
    need("torch", "transformers", "safetensors")
    from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                              MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "text.txt").write_text("The ranks move in lockstep, and the bits stay the same.\n" * 200)
        checks = {}

        def ours(name, model, kind):
            def check():
                run(gpt, "train", "--text", work / "text.txt", "--model", model, "--context", 32, "--batch", 4, "--steps", 5,
                    "--export", work / name)
                return compare(gpt, work / name, work, kind)

            checks["ours: " + name] = check

        def theirs(name, make, kind, **options):
            def check():
                make().save_pretrained(work / name, safe_serialization=True, **options)
                return compare(gpt, work / name, work, kind)

            checks["theirs: " + name] = check

        def theirs_again(name, make, kind):
            """Created by Transformers, then loaded, trained a little and exported by us."""
            def check():
                make().save_pretrained(work / "from", safe_serialization=True)
                run(gpt, "train", "--text", work / "text.txt", "--init", work / "from", "--batch", 2, "--steps", 2, "--export",
                    work / name)
                return compare(gpt, work / name, work, kind)

            checks["theirs, trained here: " + name] = check

        ours("gpt2", "gpt:2x32x2", "GPT2LMHeadModel")
        theirs("gpt2", lambda: GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=48, n_layer=3, n_head=4)),
               "GPT2LMHeadModel")
        ours("llama", "llama:2x32x2", "LlamaForCausalLM")
        for name, rope in ROPES.items():
            # the text is longer than this
            sizes = dict(SIZES, max_position_embeddings=8) if name == "dynamic" else SIZES
            make = lambda rope=rope, sizes=sizes: LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=dict(rope, rope_theta=1e4)))
            theirs(f"llama_{name}", make, "LlamaForCausalLM")
            theirs_again(f"llama_{name}_again", make, "LlamaForCausalLM")
            old = work / f"old_{name}.json"  # as written by Transformers 4
            scaling = {{"rope_type": "type"}.get(key, key): value for key, value in rope.items()}
            old.write_text(json.dumps(dict(SIZES, model_type="llama", rope_theta=1e4, rope_scaling=None if name == "default" else scaling)))
            ours(f"llama_old_{name}", old, "LlamaForCausalLM")
        theirs("llama_wide", lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=20, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
               "LlamaForCausalLM")
        theirs("llama_shards", lambda: LlamaForCausalLM(LlamaConfig(**SIZES)), "LlamaForCausalLM", max_shard_size="60KB")
        theirs("mistral", lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)), "MistralForCausalLM")
        windowed = {"mistral_window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5)),
                    "qwen2_window": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, sliding_window=4, use_sliding_window=True, max_window_layers=1))}
        for name, make in windowed.items():
            theirs(name, make, type(make()).__name__)
            theirs_again(name + "_again", make, type(make()).__name__)
        theirs("qwen2", lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)), "Qwen2ForCausalLM")
        theirs_again("qwen2_again", lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)), "Qwen2ForCausalLM")

        return count(checks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
