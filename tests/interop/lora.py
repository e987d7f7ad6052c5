#!/usr/bin/env python3
"""Adapters of gpt load in Hugging Face's peft and give the same logits there, and vice versa.

Exit code 77 (skipped) if torch, transformers or peft is missing; $PYTHON names another interpreter that may have them.

Usage: lora.py PATH/TO/gpt
       lora.py --golden      writes extensions/lora/tests/golden/
"""
import json
import pathlib
import sys
import tempfile

from checks import count, need, run

TOLERANCE = 1e-4
IDS = [7, 41, 3, 58, 60, 12, 5, 53, 2, 30]
EXTENSIONS = pathlib.Path(__file__).resolve().parents[2] / "extensions"
GOLDEN, BASES = EXTENSIONS / "lora/tests/golden", EXTENSIONS / "hugging_face/tests/golden"
LLAMA, GPT2 = BASES / "models/llama_linear", BASES / "hf_gpt2_odd"
CASES = {  # name: (folder of the base model, options for peft)
    "llama": (LLAMA, dict(r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "down_proj"], modules_to_save=["norm"])),
    "llama_rslora": (LLAMA, dict(r=4, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "o_proj"])),
    "gpt2": (GPT2, dict(r=3, lora_alpha=7, target_modules=["c_attn", "mlp.c_proj"])),
}


def logits_of(model):
    import torch
    with torch.no_grad():
        return model.eval()(torch.tensor([IDS])).logits[0]


def adapted(name, dtype):
    """A model with an adapter of random values."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base, options = CASES[name]
    torch.manual_seed(5)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), LoraConfig(task_type="CAUSAL_LM", **options), autocast_adapter_dtype=False)
    for key, p in model.named_parameters():
        if p.requires_grad:
            p.data = (torch.randn(p.shape) * 0.2 + ("norm" in key)).to(p.dtype)
    return model


def golden():
    import torch
    from safetensors.torch import load_file, save_file

    for name, (base, _) in CASES.items():
        if name == "llama_rslora":
            continue
        folder = GOLDEN / name
        model = adapted(name, torch.float64)
        logits = logits_of(model)
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        tensors = load_file(folder / "adapter_model.safetensors")
        if any(not torch.equal(t, t.float().double()) for t in tensors.values()):
            raise RuntimeError("expected values that f32 has")
        save_file({key: t.float() for key, t in tensors.items()}, folder / "adapter_model.safetensors", {"format": "pt"})
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(pathlib.Path("../../../..") / base.relative_to(EXTENSIONS))
        config["target_modules"].sort()
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file({"input_ids": torch.tensor([IDS]), "logits": logits[None].contiguous()}, folder / "expected.safetensors")


def ours_of(gpt, folder, work):
    from safetensors.torch import load_file
    run(gpt, "logits", folder, "--ids", ",".join(map(str, IDS)), "--to", work / "logits.safetensors")
    return load_file(work / "logits.safetensors")["logits"].reshape(len(IDS), -1)


def compare(ours, theirs):
    off = ((ours - theirs).abs() / theirs.abs().clamp(min=1)).max().item()
    if not off <= TOLERANCE:
        raise RuntimeError(f"logits differ by {off} (allowed {TOLERANCE})")
    return off


def loaded_by_peft(folder, base):
    """The model that peft loads from a folder of ours; every tensor must be used."""
    from peft import AutoPeftModelForCausalLM, get_peft_model_state_dict
    from safetensors.torch import load_file
    model = AutoPeftModelForCausalLM.from_pretrained(folder)
    there, ours = get_peft_model_state_dict(model), load_file(folder / "adapter_model.safetensors")
    if sorted(there) != sorted(ours) or any(not there[key].equal(ours[key]) for key in ours):
        raise RuntimeError(f"peft has {sorted(there)}, we wrote {sorted(ours)}")
    return model


def main(gpt):
    import torch

    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "text.txt").write_text("The ranks move in lockstep, and the bits stay the same.\n" * 50)
        checks = {}

        def theirs(name):
            model = adapted(name, torch.float32)
            model.save_pretrained(work / name)
            return compare(ours_of(gpt, work / name, work), logits_of(model))

        def ours(name, model, options):
            """A base model of ours (on bytes) and an adapter trained here, used by peft."""
            run(gpt, "train", "--text", work / "text.txt", "--model", model, "--context", 32, "--batch", 4, "--steps", 3, "--export", work / name)
            run(gpt, "train", "--text", work / "text.txt", "--init", f"{work / name},{options}", "--batch", 4, "--steps", 8, "--warmup", 1, "--lr", 0.02,
                "--export", work / (name + "_adapter"))
            logits = ours_of(gpt, work / (name + "_adapter"), work)
            if (logits - ours_of(gpt, work / name, work)).abs().max() < 1e-3:
                raise RuntimeError("the adapter learned nothing")
            return compare(logits, logits_of(loaded_by_peft(work / (name + "_adapter"), work / name)))

        for case in CASES:
            checks["theirs: " + case] = lambda case=case: theirs(case)
        for number, (model, options) in enumerate([("llama:2x32x2", "lora=4,alpha=16"), ("gpt:2x32x2", "lora=4,alpha=16"),
                                                   ("llama:2x32x2", "lora=2,rslora=true,targets=q_proj+k_proj+out_proj+gate+blocks.1.mlp.down,modules_to_save=head+norm"),
                                                   ("gpt:2x32x2", "lora=2,alpha=3,targets=in_proj+mlp.down+up")]):
            checks[f"ours: {model} {options}"] = lambda n=number, model=model, options=options: ours(f"ours{n}", model, options)
        return count(checks)


if __name__ == "__main__":
    need("torch", "transformers", "peft", "safetensors")
    sys.exit(golden() if sys.argv[1] == "--golden" else main(sys.argv[1]))
