#!/usr/bin/env python3
"""gpt with adapters: trained on a folder's weights with the same bits under every plan, saved, exported, and used
again.

commands.py BUILD          ends with "N passed, N failed"
"""
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, check, finish, refused, result, run  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

with tempfile.TemporaryDirectory() as folder:
    os.environ["TMPDIR"] = folder
    d = pathlib.Path(folder)
    text, other = d / "text.txt", d / "other.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    other.write_text("sphinx of black quartz, judge my vow. " * 200)
    for kind, model, targets in (("llama", "llama:2x32x2", "q_proj+v_proj+down"), ("gpt2", "gpt:2x32x2", "in_proj+up")):
        base, adapter, runs = d / f"{kind}_base", d / f"{kind}_adapter", d / f"{kind}_run"
        r = run("gpt", "train", "--text", text, "--model", model, "--context", 32, "--batch", 4, "--steps", 60, "--warmup", 2, "--lr", 0.02, "--export", base, "--json")
        check(f"{kind}: base", r.returncode == 0, r.stderr)
        before = (base / "model.safetensors").read_bytes()
        init = f"{base},lora=4,alpha=32,dropout=0.1,targets={targets}"
        tune = ["gpt", "train", "--text", other, "--init", init, "--batch", 2, "--warmup", 2, "--lr", 0.03]
        r = run("lockstep", "verify", "--plans", "none:1x4,ddp:2x2,zero1:2x2,zero2:4x1,zero3:2x2,pp2:2x4,dp2+pp2:4x2", "--", APPS / "gpt", *tune[1:], "--steps", 3)
        check(f"{kind}: verify", r.returncode == 0 and r.stdout.splitlines()[-1] == "identical" and r.stdout.count("same bits") == 6, r.stdout + r.stderr)
        losses = {}
        for plan, ranks in (("dp1", 1), ("tp2", 2), ("cp2", 2)):
            r = run(*[str(w).replace("dropout=0.1,", "") for w in tune], "--steps", 3, "--ranks", ranks, "--plan", plan, "--accumulate", 2, "--json")
            losses[plan] = result(r)["val_loss"] if r.returncode == 0 else r.stdout + r.stderr
        check(f"{kind}: tp and cp to a tolerance", all(isinstance(v, float) and abs(v / losses["dp1"] - 1) < 1e-4 for v in losses.values()), str(losses))

        r = run(*tune, "--steps", 60, "--out", runs, "--export", adapter, "--json")
        check(f"{kind}: tune", r.returncode == 0, r.stdout + r.stderr)
        check(f"{kind}: the base is as it was", (base / "model.safetensors").read_bytes() == before)
        check(f"{kind}: an adapter, and no model", sorted(f.name for f in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"], str(list(adapter.iterdir())))
        facts = json.loads((runs / "config.json").read_text())
        check(f"{kind}: facts", facts["lora"]["r"] == 4 and facts["lora"]["targets"] == targets.split("+"), str(facts))
        loss = {at.name: result(run("gpt", "eval", at, "--text", other, "--json"))["loss"] for at in (base, runs, adapter)}
        check(f"{kind}: it learned", loss[adapter.name] == loss[runs.name] < loss[base.name] - 0.3, str(loss))
        texts = [run("gpt", "sample", at, "--prompt", "sphinx ", "--tokens", 30, "--greedy").stdout for at in (base, runs, adapter)]
        check(f"{kind}: samples", texts[1] == texts[2] and len(texts[1]) > 30, str(texts))
        r = run(*tune, "--steps", 62, "--out", runs, "--resume", "--json")
        check(f"{kind}: resume", r.returncode == 0 and result(r)["steps"] == 62, r.stdout + r.stderr)
        refused(f"{kind}: resume with another rank", [str(w).replace("lora=4", "lora=5") for w in tune] + ["--steps", 63, "--out", runs, "--resume"], "lora was")
        refused(f"{kind}: --ema of an adapter", ["gpt", "sample", adapter, "--ema"], "--ema is for runs")
    # Adapters on quantized weights: the run and the exported adapter are the same model.
    for codes in ("group8", "group4", "row8"):
        at, adapter = d / f"run_{codes}", d / f"adapter_{codes}"
        init = f"{base},lora=4,alpha=32,targets=in_proj+up,quantize={codes}"
        tune = ["gpt", "train", "--text", other, "--init", init, "--batch", 2, "--warmup", 2, "--lr", 0.03, "--json"]
        r = run(*tune, "--steps", 30, "--out", at, "--export", adapter)
        check(f"{codes}: trains and exports", r.returncode == 0 and (adapter / "adapter_model.safetensors").exists(), r.stdout + r.stderr)
        r = run("lockstep", "checkpoint", "inspect", at, "--json")
        check(f"{codes}: weights are codes", r.returncode == 0 and any(name.endswith("in_proj.weight.codes") for name in json.loads(r.stdout)["tensors"]), r.stderr)
        texts = [run("gpt", "sample", *model, "--prompt", "sphinx ", "--tokens", 20, "--greedy") for model in ((at,), (adapter, "--quantize", codes))]
        check(f"{codes}: samples", all(r.returncode == 0 for r in texts) and texts[0].stdout == texts[1].stdout, texts[0].stderr + texts[1].stderr + texts[0].stdout + texts[1].stdout)
        losses = [result(run("gpt", "eval", *model, "--text", other, "--json"))["loss"] for model in ((base, "--quantize", codes), (at,), (adapter, "--quantize", codes))]
        check(f"{codes}: it learned", losses[1] == losses[2] < losses[0] - 0.3, str(losses))
        r = run(*tune, "--steps", 32, "--out", at, "--resume")
        check(f"{codes}: resume", r.returncode == 0 and result(r)["steps"] == 32, r.stdout + r.stderr)
    r = run("gpt", "finetune", "--model_name_or_path", f"{base},lora=2,targets=in_proj,quantize=group8", "--train_file", other, "--do_train", "--block_size", 32, "--max_steps", 2, "--output_dir", d / "tuned")
    check("finetune over codes", r.returncode == 0 and (d / "tuned/adapter_model.safetensors").exists(), r.stdout + r.stderr)
    start = ["gpt", "train", "--text", text, "--steps", 1, "--init"]
    for name, init, part in (("no rank", f"{base},alpha=4", "expected lora=RANK"), ("an unknown key", f"{base},lora=4,rank=4", "got 'rank=4'"), ("a key twice", f"{base},lora=4,alpha=1,alpha=2", "expected each key once, got 'alpha' twice"), ("rank 0", f"{base},lora=0", "expected lora from 1 to 1048576"),
                             ("dropout 1", f"{base},lora=4,dropout=1", "expected dropout from 0 to below 1"), ("a word", f"{base},lora=four", "--init: lora")):
        refused(name, [*start, init], part, code=2)
    refused("an unknown target", [*start, f"{base},lora=4,targets=q_prj"], "did you mean q_proj?")
    refused("--parallel dp", [*start, f"{base},lora=4", "--parallel", "dp:2"], "cannot be combined with --parallel dp", code=2)
    refused("a base that is gone", ["gpt", "sample", GOLDEN, "--ids", "1"], "config.json")
    away = d / "away"
    away.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (away / name).write_bytes((adapter / name).read_bytes())
    (away / "adapter_config.json").write_text(json.dumps(dict(json.loads((adapter / "adapter_config.json").read_text()), base_model_name_or_path="org/name")))
    texts = [run("gpt", "sample", *model, "--prompt", "sphinx ", "--tokens", 20, "--greedy") for model in ((adapter,), (away, "--base-model", base))]
    check("a base by its folder", all(r.returncode == 0 for r in texts) and texts[0].stdout == texts[1].stdout, texts[1].stderr)
    refused("an adapter of a hub's model", ["gpt", "sample", away, "--ids", "1"], "give its folder (--base-model)")
    refused("a base that is no model", ["gpt", "sample", away, "--base-model", d, "--ids", "1"], "which has no model.safetensors")
    refused("a base for a model", ["gpt", "sample", base, "--base-model", base, "--ids", "1"], "leave --base-model out")
    (d / "gone").mkdir()
    (d / "gone/adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", base_model_name_or_path="somewhere/else")))
    refused("an adapter without its base", ["gpt", "sample", d / "gone", "--ids", "1"], "expected base_model_name_or_path to be the folder of a model, got 'somewhere/else'")
    r = run("gpt", "sample", GOLDEN / "llama", "--ids", "7,41,3", "--tokens", 3, "--greedy")
    check("peft's", r.returncode == 0 and r.stdout.count(",") == 2, r.stdout + r.stderr)
finish()
