#!/usr/bin/env python3
"""gpt with Llamas: trains one from its config.json, with the same bits under every plan; runs and folders that can be
loaded again.

tests/gpt_llama.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import pathlib

from programs import APPS, check, finish, refused, result, run, workplace, works

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "extensions/hugging_face/tests/golden/models"

with workplace() as (d, text):
    config = d / "llama.json"
    sizes = dict(model_type="llama", vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                 head_dim=12, rms_norm_eps=1e-5, attention_bias=True, rope_parameters=dict(rope_type="llama3", rope_theta=5000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8))
    config.write_text(json.dumps(sizes))
    train = ["gpt", "train", "--text", text, "--model", config, "--batch", 2, "--warmup", 2, "--dropout", 0.1]

    works("verify a Llama", ["lockstep", "verify", "--plans", "none:1x4,ddp:2x2,zero1:2x2,zero2:4x1,zero3:2x2,pp2:2x4,dp2+pp2:4x2", "--", APPS / "gpt", *train[1:], "--steps", 3], lambda r: r.stdout.splitlines()[-1] == "identical" and r.stdout.count("same bits") == 6)
    losses = {}
    for plan, ranks in (("dp1", 1), ("tp2", 2), ("cp2", 2), ("pp2+tp2", 4)):
        r = run("gpt", "train", "--text", text, "--model", config, "--batch", 2, "--warmup", 2, "--steps", 3, "--ranks", ranks, "--plan", plan, "--accumulate", 2, "--json")
        losses[plan] = result(r)["val_loss"] if r.returncode == 0 else r.stdout + r.stderr
    check("tp and cp to a tolerance", all(isinstance(v, float) and abs(v / losses["dp1"] - 1) < 1e-4 for v in losses.values()), str(losses))

    # A run stores all its options; the exported model gives the same logits, bit by bit.
    works("train, keep and export", [*train, "--steps", 6, "--out", d / "run", "--export", d / "exported", "--json"], lambda r: result(r)["steps"] == 6)
    facts = json.loads((d / "run/config.json").read_text())
    check("facts", facts["rope"] == {"base": 5000.0, "scaling": "llama3", "factor": 4.0, "original_context": 8} and facts["feed_forward"] == "swiglu" and facts["head_size"] == 12 and "mlp_bias" in facts and "bias" not in facts, str(facts))
    for folder in ("run", "exported"):
        works(f"logits of {folder}", ["gpt", "logits", d / folder, "--ids", "116,104,101,32", "--to", d / f"{folder}.safetensors"])
    check("the same logits", (d / "run.safetensors").read_bytes() == (d / "exported.safetensors").read_bytes())
    texts = [run("gpt", "sample", d / folder, "--prompt", "the ", "--tokens", 20, "--greedy").stdout for folder in ("run", "exported")]
    check("the same text", len(texts[0]) > 20 and texts[0] == texts[1], str(texts))
    # With an inference configuration, in one process and with tensor parallelism on two; from a run and from a Hugging
    # Face folder.
    (d / "tp.json").write_text('{"tensor_parallel": {"tp_size": 2}}')
    (d / "nvme.json").write_text(json.dumps({"zero": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(d)}}}))
    for name, ranks, file in (("run", 2, "tp"), ("exported", 2, "tp"), ("exported", 1, "nvme")):
        start = ["lockstep", "run", "-n", ranks, "--", APPS / "gpt"] if ranks > 1 else ["gpt"]
        works(f"the same text by {file} of {name}", [*start, "sample", d / name, "--prompt", "the ", "--tokens", 20, "--greedy", "--config", d / f"{file}.json"], lambda r: r.stdout.replace("[rank 0] ", "") == texts[0])
    refused("tp without ranks", ["gpt", "sample", d / "run", "--config", d / "tp.json"], "start the program with lockstep run -n 2")
    works("eval", ["gpt", "eval", d / "run", "--text", text, "--json"], lambda r: result(r)["loss"] > 0)
    works("resume", [*train, "--steps", 8, "--out", d / "run", "--resume", "--json"], lambda r: result(r)["steps"] == 8)
    config.write_text(json.dumps(dict(sizes, head_dim=8)))
    refused("resume with other options", [*train, "--steps", 9, "--out", d / "run", "--resume"], "head_size was 12 and is now 8")

    # Starts from a folder, on one rank and with ranks that load only their own shards.
    start = ["gpt", "train", "--text", text, "--init", d / "exported", "--batch", 2, "--warmup", 2, "--steps", 2, "--accumulate", 2]
    traces = {}
    for plan, ranks in (("dp1", 1), ("pp2", 2)):
        r = run(*start, "--ranks", ranks, "--plan", plan, "--trace-bits", d / f"{plan}.trace")
        traces[plan] = (d / f"{plan}.trace").read_text() if r.returncode == 0 else r.stderr
    check("--init under a plan", traces["dp1"] == traces["pp2"] and traces["dp1"].count("\n") == 2, str(traces))
    works("--init in slices", [*start, "--ranks", 2, "--plan", "tp2", "--json"], lambda r: abs(result(r)["val_loss"] - result(run(*start, "--json"))["val_loss"]) < 1e-3)

    works("shorter samples than the model's context", [*start, "--context", 16, "--json"], lambda r: abs(result(r)["val_loss"]) < 20)
    refused("longer ones", [*start, "--context", 33], "--context 33: expected at most the model's context, 32")

    r = run("gpt", "sample", GOLDEN / "llama_main", "--ids", "70,108,141,110,53", "--tokens", 6, "--greedy")
    check("greedy ids", r.stdout.strip() == "163,72,163,152,24,2", r.stdout + r.stderr)
    if "\n  plan " in run("lockstep", "--help").stdout:  # built with the extension that adds the command
        works("plan", ["lockstep", "plan", "--plan", "tp2", "--json", "--", APPS / "gpt", *train[1:-2]])
    works("llama:", ["gpt", "train", "--text", text, "--model", "llama:1x32x2", "--context", 32, "--batch", 2, "--steps", 3, "--json"])
    for bad in ("llama:1x30x2", "llama:1x32", "llamma:1x32x2"):
        refused(f"--model {bad}", ["gpt", "train", "--text", text, "--model", bad, "--steps", 1], "expected", code=2)
    config.write_text(json.dumps(dict(sizes, hidden_act="relu")))
    refused("another activation", [*train, "--steps", 1], "hidden_act: expected 'silu', got 'relu'", code=2)
    (d / "empty").mkdir()
    refused("--init without a model", ["gpt", "train", "--text", text, "--init", d / "empty"], "config.json")
finish()
