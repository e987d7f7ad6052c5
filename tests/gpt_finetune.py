#!/usr/bin/env python3
"""gpt finetune: Hugging Face's options, a DeepSpeed file with "auto", ranks, checkpoint-N and resuming, and the
exported folder.

tests/gpt_finetune.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json

from programs import check, finish, refused, result, run, workplace, works

AUTO = dict(train_batch_size="auto", train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto", gradient_clipping="auto", fp16=dict(enabled="auto"), bf16=dict(enabled="auto"),
            optimizer=dict(type="AdamW", params=dict(lr="auto", betas="auto", eps="auto", weight_decay="auto")),
            scheduler=dict(type="WarmupDecayLR", params=dict(warmup_min_lr="auto", warmup_max_lr="auto", warmup_num_steps="auto", total_num_steps="auto")),
            zero_optimization=dict(stage=2, reduce_bucket_size="auto"))

with workplace(60) as (d, text):
    ds = d / "ds.json"
    ds.write_text(json.dumps(AUTO))
    works("a folder to start from", ["gpt", "train", "--text", text, "--model", "llama:1x16x2", "--context", 16, "--steps", 1, "--export", d / "base"])
    ids = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 4}
    base = json.loads((d / "base/config.json").read_text())
    (d / "base/config.json").write_text(json.dumps(dict(base, **ids, initializer_range=0.5, limit=float("inf"), length=10**30)))
    call = ["gpt", "finetune", "--model_name_or_path", d / "base", "--train_file", text, "--do_train", "--learning_rate", "5e-3", "--per_device_train_batch_size", 4]

    works("trains", [*call, "--do_eval", "--output_dir", d / "one", "--max-steps", 8, "--save-steps", 4, "--logging_steps=2", "--dataloader_drop_last", "True", "--json"], lambda r: result(r)["steps"] == 8 and 0 < result(r)["eval_loss"] < 5.5 and "perplexity" in result(r))
    there = sorted(f.name for f in (d / "one").iterdir())
    check("the folder", {"checkpoint-4", "checkpoint-8", "config.json", "model.safetensors", "trainer_state.json", "all_results.json", "run.json"} <= set(there), str(there))
    state = json.loads((d / "one/trainer_state.json").read_text())
    check("trainer_state.json", [e["step"] for e in state["log_history"] if "loss" in e] == [2, 4, 6, 8] and state["global_step"] == 8 and "train_loss" in state["log_history"][-1], str(state))
    saved = json.loads((d / "one/config.json").read_text())
    check("ids and what changes nothing are kept", {**saved, **ids, "initializer_range": 0.5} == saved and json.loads((d / "one/generation_config.json").read_text()) == ids, str(saved))
    works("its report", ["lockstep", "report", d / "one", "--json"], lambda r: {"loss", "lr"} <= set(json.loads(r.stdout)["metrics"]) and "arguments.learning_rate" in (d / "one/report.html").read_text())
    works("the report of a checkpoint", ["lockstep", "report", d / "one/checkpoint-8", "--out", d / "report.html", "--json"], lambda r: {"loss", "learning_rate"} <= set(json.loads(r.stdout)["metrics"]))
    works("a whole checkpoint", ["lockstep", "checkpoint", "verify", d / "one/checkpoint-4"])
    trained = (d / "one/model.safetensors").read_bytes()
    works("goes on from checkpoint-4 to the same bits", [*call, "--do_eval", "--output_dir", d / "two", "--max_steps", 8, "--resume_from_checkpoint", d / "one/checkpoint-4", "--dataloader-drop-last"], lambda r: (d / "two/model.safetensors").read_bytes() == trained)
    works("another stage, the same bits", [*call, "--do_eval", "--output_dir", d / "ranks", "--max_steps", 8, "--num_gpus", 1, "--dataloader_drop_last", "--set", "zero_optimization.stage=1"], lambda r: (d / "ranks/model.safetensors").read_bytes() == trained)
    works("a run that is done says so", [*call, "--do_eval", "--output_dir", d / "two", "--max_steps", 8, "--resume_from_checkpoint", "True", "--dataloader-drop-last"], lambda r: "the run is done, this is step 8 of 8" in r.stderr and (d / "two/model.safetensors").read_bytes() == trained)
    r = run(*call, "--eval_strategy", "steps", "--eval_steps", 0.5, "--save_steps", "4.0", "--logging_steps", 0.25, "--output_dir", d / "parts", "--num_train_epochs", "0.2", "--json")
    state = json.loads((d / "parts/trainer_state.json").read_text())
    steps = result(r)["steps"]
    check("parts of all steps", r.returncode == 0 and [e["step"] for e in state["log_history"] if "eval_loss" in e][0] == state["eval_steps"] == -(-steps // 2) and state["save_steps"] == 4, r.stdout + r.stderr)
    works("evaluates alone", ["gpt", "finetune", "--model_name_or_path", d / "one", "--do_eval", "--validation_file", text, "--block_size", 16, "--json"], lambda r: 0 < result(r)["eval_loss"] < 5.5)
    works("the folder is a model", ["gpt", "sample", d / "one", "--prompt", "the ", "--tokens", 4, "--greedy"], lambda r: r.stdout.startswith("the "))
    works("a file with auto", [*call, "--deepspeed", ds, "--num_gpus", 2, "--gradient_accumulation_steps", 2, "--max_steps", 3, "--warmup_ratio", 0.4, "--weight_decay", 0.1, "--bf16", "--json"], lambda r: result(r)["steps"] == 3 and result(r)["plan"] == "dp2+zero2")
    ds.write_text(json.dumps({**AUTO, "optimizer": {"type": "AdamW8bit", "params": {"lr": "auto"}}}))
    works("state in 8 bits", [*call, "--deepspeed", ds, "--num_gpus", 2, "--max_steps", 3, "--json"])
    works("adapters", [*call[:2], "--model_name_or_path", f"{d / 'base'},lora=2", *call[4:], "--max_steps", 2, "--output_dir", d / "adapter"], lambda r: (d / "adapter/adapter_config.json").exists())
    table = d / "table.jsonl"
    table.write_text("".join(json.dumps(dict(id=i, text=line)) + "\n" for i, line in enumerate(text.read_text().split("\n")[:400]) if line))
    (d / "table.csv").write_text("text\n" + "".join('"' + line.replace('"', '""') + '"\n' for line in text.read_text().split("\n")[:400] if line))
    (d / "none.csv").write_text("text\n")
    tables = [run(*call[:4], "--train_file", d / name, *call[6:], "--max_steps", 3, "--json") for name in ("table.jsonl", "table.csv")]
    check("tables", all(r.returncode == 0 for r in tables) and result(tables[0])["loss"] == result(tables[1])["loss"], tables[0].stderr + tables[1].stderr)
    works("other optimizers and schedules", [*call, "--optim", "adafactor", "--lr_scheduler_type", "warmup_stable_decay", "--lr_scheduler_kwargs", '{"num_decay_steps": 2}', "--label_smoothing_factor", 0.1, "--gradient_checkpointing", "True", "--max_steps", 3, "--json"], lambda r: result(r)["steps"] == 3)
    works("overwrites", [*call, "--output_dir", d / "two", "--overwrite_output_dir", "--max_steps", 2, "--report_to", "tensorboard", "--json"], lambda r: result(r)["steps"] == 2 and not (d / "two/checkpoint-8").exists() and list((d / "two/runs").iterdir()))
    works("slices", [*call, "--max_steps", 2, "--ranks", 2, "--plan", "tp2", "--json"], lambda r: result(r)["plan"] == "tp2")

    ds.write_text(json.dumps({**AUTO, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}))
    refused("three mismatches are one error", [*call, "--deepspeed", ds], "- ds train_micro_batch_size_per_gpu=8 vs args per_device_train_batch_size=4\n", "- ds optimizer.params.lr=1e-05 vs args learning_rate=0.005\n",
            "- ds gradient_clipping=0.5 vs args max_grad_norm=1.0\nThe easiest method is to set these DeepSpeed config values to 'auto'.", code=2)
    for name, more, part, code in (
            ("an unknown option", ["--per_device_batch_size", 4], "did you mean --per_device_", 2),
            ("the same with -", ["--learningrate", 4], "--learning_rate", 2),
            ("nothing to do", None, "expected --do_train, --do_eval, or both", 2),
            ("save and evaluate apart", ["--load_best_model_at_end", "--output_dir", d / "x"], "expected the same eval_strategy and save_strategy", 2),
            ("a schedule that is none", ["--lr_scheduler_type", "cosin"], "got cosin", 2),
            ("two ways to warm up", ["--warmup_steps", 3, "--warmup_ratio", 0.1], "got both", 2),
            ("a run that is there", ["--output_dir", d / "one"], "already holds a run", 1),
            ("no such checkpoint", ["--output_dir", d / "x", "--resume_from_checkpoint", d / "none"], "none", 1),
            ("a table without texts", ["--do_eval", "--validation_file", d / "none.csv"], "none.csv: expected at least one row", 1),
            ("an optimizer that is none", ["--optim", "adam"], "optim: expected one of adamw_torch", 2),
            ("a schedule's option that is none", ["--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"power": 2}'], "got power", 2),
            ("a service", ["--report_to", "wandb", "--output_dir", d / "x"], "got wandb", 2),
            ("an option twice", ["--do_eval", "--train_file", text], "--train_file", 2),
            ("steps that are no number of steps", ["--save_steps", "2.5"], "save_steps: expected a whole number from 1 up, or a part of all steps below 1, got 2.5", 2),
            ("a long block", ["--block_size", 17], "--block_size 17", 1),
            ("a text that is not there", ["--do_eval", "--validation_file", d / "none.txt"], "none.txt", 1)):
        refused(name, ["gpt", "finetune", "--model_name_or_path", d / "base"] if more is None else [*call, *more], part, code=code)
    check("nothing was made by calls that are refused", not (d / "x").exists())
finish()
