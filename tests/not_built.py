#!/usr/bin/env python3
"""What pages say is refused, or not built: it is. Once it is built a row here fails, and the page has to say so.

tests/not_built.py BUILD_FOLDER          ends with "N passed, N failed"

A row: the page, words of it, a command, and words of the error. The keys that config.md and the page of inference configurations list as refused are
tried one by one.
"""
import json
import pathlib
import re

from programs import check, finish, run, workplace, works

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
SPARSE = "sparse_attention=" + json.dumps({"mode": "bigbird", "block": 4})
ONE_BIT = ["--optimizer", "onebit-adam"]
EXPERTS = ["--experts", "4,every=1"]


def two(plan, *options):
    return [*train, "--ranks", 2, "--plan", plan, *options]


def sets(*keys):
    return [word for key in keys for word in ("--set", key)]


def one_line(text):
    return re.sub(r"\s+", " ", text)


def asks(printed):
    """A value of a key that asks for something, where the page shows one that asks for nothing."""
    if printed is None:
        return True
    nothing = json.loads(printed)
    if isinstance(nothing, dict):
        return {key: True for key in nothing} or {"x": 1}
    return {None: {"x": 1}, False: True, 1: 2, "mean": "sum"}[nothing]


def model(d, name, **changed):
    sizes = {"model_type": "mistral", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "sliding_window": 8, "hidden_act": "silu"}
    (d / name).write_text(json.dumps({**sizes, **changed}))
    return ["gpt", "train", *text, "--model", d / name]


with workplace(40) as (d, file):
    text = ["--text", file, "--context", 24, "--batch", 1, "--steps", 1, "--eval-batches", 1]
    train = ["gpt", "train", *text, "--model", "gpt:1x24x2"]
    digits = ["mlp", "train", "--samples", 64, "--batch", 8, "--epochs", 1]
    launch = lambda *options: ["lockstep", "run", *options, "--", "true"]  # noqa: E731
    window = model(d, "window.json")
    made = works("a run to look at", [*train, "--out", d / "run", "--export", d / "hf"])

    rows = [
        # features.md: what does not work
        ("features", "ZeRO 2 and 3 | not with pipeline stages or tensor parallelism", two("pp2+zero2"), "zero2 shards gradients after every micro-batch, but a pipeline sums all micro-batches first; use zero1"),
        ("features", "ZeRO 2 and 3 | not with pipeline stages or tensor parallelism", two("tp2+zero3"), "zero3 shards gradients after every micro-batch, but tensor parallelism sums all micro-batches first; use zero1"),
        ("features", "not with Megatron's sequence parallelism", two("cp2", *sets("tensor_parallel.sequence_parallel=true")), "tensor_parallel.sequence_parallel cannot be combined with cp2"),
        ("features", "sparse attention, or masks other than causal", two("cp2", "--set", SPARSE), "sparse_attention with cp2 is not supported"),
        ("features", "ring attention takes no sliding window", [*window, "--ranks", 2, "--plan", "cp2"], "an attention window (8) shorter than the sequence is not supported; use ulysses_attention"),
        *(("features", "tensor parallelism | not with LAMB, Muon, Adafactor, 8-bit or 1-bit optimizers", two("tp2", *sets(f"optimizer.type={name}")), said)
          for name, said in (*((name, f"{name} needs whole matrices, which tp2 shards") for name in ("Lamb", "Muon", "Adafactor")), ("AdamW8bit", "blocks of 256 elements of the whole parameter, and tp2 cuts across them"))),
        ("features", "tensor parallelism | not with LAMB, Muon, Adafactor, 8-bit or 1-bit optimizers", two("tp2", *ONE_BIT), "needs the whole model on every rank, but tp2"),
        ("features", "experts | over ranks not with fp8", two("ep2", *EXPERTS, "--precision", "fp8"), "fp8.enabled with ep2: ranks with different experts would have to agree on their scales, which is not supported"),
        ("features", "never with Megatron's sequence parallelism", two("tp2", *EXPERTS, *sets("tensor_parallel.sequence_parallel=true")), "tensor_parallel.sequence_parallel cannot be combined with experts"),
        ("tensor-parallel", "Models with experts do not work with it", two("tp2", *EXPERTS, *sets("tensor_parallel.sequence_parallel=true")), "cannot be combined with experts, which route the tokens of whole sequences"),
        ("features", "ZeRO stage 0 only", two("zero1", *ONE_BIT), "needs stage 0"),
        ("features", "without offload", two("zero1", "--offload", "cpu", *ONE_BIT), "offload_optimizer.device is cpu; leave it out"),
        ("features", "tensor parallelism and experts over ranks", two("ep2", *EXPERTS, *ONE_BIT), "with ep2 ranks hold different experts"),
        ("features", "without `longrope` or partial rotary positions", model(d, "longrope.json", rope_scaling={"rope_type": "longrope"}), "rope_type 'longrope' is not supported"),
        ("features", "no asymmetric codes", ["gpt", "sample", d / "run", "--config", '{"dtype": "int8", "quant": {"weight": {"q_type": "asymmetric"}}}'], "asymmetric"),
        # the pages of the features
        ("tensor-parallel", "refuses them with `tpN`, and ZeRO 2 and 3 too", two("tp2+zero2"), "zero2 shards gradients after every micro-batch, but tensor parallelism sums all micro-batches first"),
        ("pipeline", "These are refused, with what to write instead: | with stages | instead | |---|---| | ZeRO 2 and 3 | ZeRO 1:", two("pp2+zero3"), "zero3 shards gradients after every micro-batch, but a pipeline sums all micro-batches first; use zero1"),
        *(("pipeline", words, two("pp2", *sets(key)), said)
          for words, key, said in (
              ("| `managed_gradient_accumulation: false` | leave it out: a pipeline makes whole steps |", "managed_gradient_accumulation=false", "managed_gradient_accumulation: false lets the caller decide when a step ends, but plans with pp or tp run whole steps; leave it out"),
              ("| `flops_profiler` | profile without pp and tp |", "flops_profiler.enabled=true", "flops_profiler.enabled: the profiler follows one forward of a whole model; leave it out, or profile without pp and tp"),
              ("| `grad_accum_dtype` | `communication_data_type` says how replicas sum |", "data_types.grad_accum_dtype=fp32", "data_types.grad_accum_dtype: plans with pp or tp sum micro-batches in the dtype of their parameters; communication_data_type sets the dtype of sums over replicas"))),
        ("pipeline", "| numbers of micro-batches that the schedule does not take | the nearest that it does |", two("pp2", "--accumulate", 3, *sets("pipeline.schedule=interleaved")), "interleaved: expected micro-batches in groups"),
        ("../extensions/fp8/README", "**Refused** are plans with ep, `fp16.enabled`, and `--parallel dp`", [*train, *sets("fp8.enabled=true", "fp16.enabled=true")], "fp16.enabled and fp8.enabled"),
        ("../extensions/fp8/README", "**Refused** are plans with ep, `fp16.enabled`, and `--parallel dp`", [*train, "--parallel", "dp:2", "--precision", "fp8"], "fp8.enabled expects the model's own forward, got another one, whose replicas of the model have no scales; use ranks instead of --parallel dp"),
        ("../extensions/deepspeed/onebit", "**Refused**: ZeRO from stage 1 on, offload, and other types of gradients on the wire", [*train, "--ranks", 2, *ONE_BIT, *sets("communication_data_type=fp32")], "communication_data_type is fp32; leave it out"),
        ("../extensions/quantization/README", "refused | tensor parallelism, which cuts parameters elsewhere; offload to files; `amsgrad`", two("zero1", "--offload", f"nvme:{d}", *sets("optimizer.type=AdamW8bit")), "AdamW8bit keeps 8-bit state, but offload to nvme stores f32"),
        ("../extensions/quantization/README", "refused | tensor parallelism, which cuts parameters elsewhere; offload to files; `amsgrad`", [*train, *sets("optimizer.type=AdamW8bit", "optimizer.params.amsgrad=true")], "have no form in 8 bits"),
        ("../extensions/sparse_attention/README", "`write the block, such as {\"mode\": \"fixed\"}`", [*train, *sets("sparse_attention=true")], "write the block, such as {\"mode\": \"fixed\"}"),
        ("../extensions/sparse_attention/README", "`sparse_attention.num_local_blocks: only applies to mode fixed, but mode is bigbird; leave it out`", [*train, *sets('sparse_attention={"mode":"bigbird","block":4,"num_local_blocks":2}')], "sparse_attention.num_local_blocks: only applies to mode fixed, but mode is bigbird; leave it out"),
        ("../extensions/sparse_attention/README", "expected unidirectional sparse attention in a causal model", [*train, *sets('sparse_attention={"mode":"fixed","block":4,"attention":"bidirectional"}')], "expected unidirectional sparse attention in a causal model, got bidirectional; leave it out"),
        ("../extensions/sparse_attention/README", "expected a model with MultiHeadAttention, got none in", [*digits, *sets('sparse_attention={"mode":"fixed"}')], "expected a model with MultiHeadAttention, got none in"),
        ("../extensions/sparse_attention/README", "`sparse attention does not support a window (4096); use the sparse modes local, bigbird or bslongformer`", [*window, "--set", SPARSE], "sparse attention does not support a window (8); use the sparse modes local, bigbird or bslongformer"),
        ("../extensions/sparse_attention/README", "`sparse_attention with cp2 is not supported; leave one of them out`", two("cp2", "--set", SPARSE), "sparse_attention with cp2 is not supported; leave one of them out"),
        ("../extensions/sparse_attention/README", "Context parallelism (cp) and replicas of `DataParallel` are refused", [*train, "--parallel", "dp:2", "--set", SPARSE], "sparse_attention is not supported with the program's own forward, such as DataParallel's"),
        ("sequence-parallel", "`[ring_attention] an attention window (4096) shorter than the sequence is not supported; use ulysses_attention`", [*window, "--ranks", 2, "--plan", "cp2"], "[ring_attention] an attention window (8) shorter than the sequence is not supported; use ulysses_attention"),
        ("sequence-parallel", "`gpt` does not take `tensor_parallel.sequence_parallel` (Megatron's) together with cp", two("cp2", *sets("tensor_parallel.sequence_parallel=true")), "tensor_parallel.sequence_parallel cannot be combined with cp2, whose ranks share sequences already"),
        ("../extensions/lora/README", "`--parallel dp` is refused, because it copies models by their options", ["gpt", "train", *text, "--init", f"{d}/hf,lora=2", "--parallel", "dp:2"], "lora= cannot be combined with --parallel dp, which copies models by their options"),
        ("../extensions/hugging_face/README", "`expected model_type 'gpt2', 'llama', 'mistral' or 'qwen2', got 'phi3'`", model(d, "phi3.json", model_type="phi3"), "expected model_type 'gpt2', 'llama', 'mistral' or 'qwen2', got 'phi3'"),
        ("../extensions/hugging_face/README", "`hidden_act: expected 'silu', got 'gelu'`", model(d, "gelu.json", hidden_act="gelu"), "hidden_act: expected 'silu', got 'gelu'"),
        ("../extensions/hugging_face/README", "`add_cross_attention true is not supported`", model(d, "cross.json", model_type="gpt2", add_cross_attention=True), "add_cross_attention true is not supported"),
        ("../extensions/hugging_face/README", "`partial_rotary_factor 0.5 is not supported`", model(d, "partial.json", partial_rotary_factor=0.5), "partial_rotary_factor 0.5 is not supported"),
        ("../extensions/hugging_face/README", "`rope_type 'longrope' is not supported`", model(d, "longrope.json", rope_scaling={"rope_type": "longrope"}), "rope_type 'longrope' is not supported"),
        ("../extensions/generation/README", "beams with stop strings, are not supported", ["gpt", "sample", d / "run", "--beams", 2, "--stop", "x"], "stop strings with num_beams 2 are not supported"),
        ("../extensions/inference/configuration", "false: dtype int8 is refused, because nothing would be quantised", ["lockstep", "config", "--inference", '{"dtype": "int8", "quant": {"enabled": false}}'], "dtype is int8, and quant disables quantisation"),
        ("train", "`ReduceLROnPlateau`, and `load_best` without a folder, are refused before training", [*train, *sets("scheduler.type=ReduceLROnPlateau")], "got ReduceLROnPlateau"),
        ("../extensions/launcher/README", "refused unless MIN equals MAX", launch("--nnodes", "1:2"), "nodes cannot come and go during a run"),
        ("../extensions/launcher/README", "`--launcher pdsh`, `openmpi`, ... | refused", launch("--launcher", "pdsh"), "expected --launcher ssh, got 'pdsh'"),
        ("../extensions/launcher/README", "`--launcher pdsh`, `openmpi`, ... | refused", launch("--launcher", "openmpi"), "expected --launcher ssh, got 'openmpi'"),
        *(("../extensions/launcher/README", "`--module`, `--run-path`, `--virtual-local-rank`, `--elastic-training`, `--autotuning` | refused; the error says what to do instead", launch(option), f"{option}: ")
          for option in ("--module", "--run-path", "--virtual-local-rank", "--elastic-training", "--autotuning")),
    ]
    for page, words, command, said in rows:
        check(f"{page}.md says '{words}'", one_line(words) in one_line((DOCS / f"{page}.md").read_text()))
        r = run(*command, LOCKSTEP_THREADS="1")
        check(f"{page}.md, '{words}': {' '.join(map(str, command))} is refused with '{said}'", r.returncode in (1, 2) and said in r.stderr, f"exit {r.returncode}: {r.stderr}")

    for page, least, of in (("config", 30, []), ("../extensions/inference/configuration", 5, ["--inference"])):
        listed = (DOCS / f"{page}.md").read_text().partition("## Accepted only when switched off")[2].partition("## Other names")[0]
        keys = re.findall(r"^- `([\w.]+)`(?: `(.*?)`)?: (.*)$", listed, re.M)
        check(f"{page}.md lists keys", len(keys) > least, len(keys))
        for key, printed, said in keys:
            config = asks(printed or None)
            for name in reversed(key.split(".")):
                config = {name: config}
            r = run("lockstep", "config", *of, json.dumps(config))
            check(f"{page}.md: {key} is refused with '{said}'", r.returncode in (1, 2) and key in r.stderr and said in r.stderr, f"exit {r.returncode}: {r.stderr}")
finish()
