#!/usr/bin/env python3
"""What gpt exports loads in Transformers, and gives the same logits there.

Trains a tiny model, exports it as a Hugging Face folder, and compares `gpt logits` with GPT2LMHeadModel; then the other
way round, a model made by Transformers in our reader. Exit code 77 (skipped) where torch or transformers is missing;
$PYTHON names another interpreter to look for them in.

Usage: transformers_gpt2.py PATH/TO/gpt
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from need import need

TOLERANCE = 1e-4
IDS = [84, 104, 101, 32, 115, 97, 109, 101, 32, 98, 105, 116, 115, 10]


def run(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")


def compare(gpt, folder, work):
    import torch
    from safetensors.torch import load_file
    from transformers import GPT2LMHeadModel

    model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    problems = {key: sorted(names) for key, names in report.items() if names}
    if problems:
        raise RuntimeError(f"Transformers says of {folder}: {problems}")
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
    from transformers import GPT2Config, GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "text.txt").write_text("The ranks move in lockstep, and the bits stay the same.\n" * 200)

        def ours_in_transformers():
            run(gpt, "train", "--text", work / "text.txt", "--model", "gpt:2x32x2", "--context", 32, "--batch", 4,
                "--steps", 5, "--export", work / "ours")
            return compare(gpt, work / "ours", work)

        def theirs_in_lockstep():
            config = GPT2Config(vocab_size=256, n_positions=64, n_embd=48, n_layer=3, n_head=4)
            GPT2LMHeadModel(config).save_pretrained(work / "theirs", safe_serialization=True)
            return compare(gpt, work / "theirs", work)

        passed = failed = 0
        for check in (ours_in_transformers, theirs_in_lockstep):
            try:
                print(f"{check.__name__}: largest difference {check():.1e}")
                passed += 1
            except RuntimeError as error:
                print(f"{check.__name__}: {error}")
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
