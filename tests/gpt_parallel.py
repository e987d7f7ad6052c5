#!/usr/bin/env python3
"""gpt train with context and expert parallelism: the losses of one process, combined with ZeRO, checkpoints, rejected
plans.

tests/gpt_parallel.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import json
import re
import shutil

from programs import APPS, RECOMPUTE, changed, check, finish, offers, refused, result, run, workplace, works


with workplace() as (d, text):
    small = ["gpt", "train", "--text", text, "--model", "gpt:2x32x4", "--context", 32, "--batch", 2, "--warmup", 2, "--steps", 6, "--eval-every", 4, "--json"]

    def near(name, r, expected, tolerance=2e-5):
        close = r.returncode == 0 and all(abs(result(r)[key] / result(expected)[key] - 1) < tolerance for key in ("loss", "val_loss"))
        check(name, close, r.stdout + r.stderr + expected.stdout)

    # Context parallelism: one rank with two micro-batches equals 2 x 2 ranks with one each.
    single, two = run(*small), run(*small, "--accumulate", 2)
    for options in ([], ["--set", "context_parallel.attention=ulysses"], ["--set", "context_parallel.attention=ring-contiguous"]):
        near(f"context parallel {options}", run(*small, "--ranks", 2, "--plan", "cp2", *options), single)
        near(f"data x context parallel {options}", run(*small, "--ranks", 4, "--plan", "cp2", *options), two)
    for stage in range(4):
        near(f"context parallel, ZeRO {stage}", run(*small, "--ranks", 4, "--plan", f"cp2+zero{stage}"), two)
        near(f"context parallel, ZeRO {stage}, accumulation", run(*small, "--ranks", 2, "--plan", f"cp2+zero{stage}", "--accumulate", 2), two)
    near("context parallel, accumulation, checkpointed blocks", run(*small, "--ranks", 2, "--plan", "cp2", "--accumulate", 2, *RECOMPUTE), two)
    works("context parallel, dropout, bf16", [*small, "--ranks", 2, "--plan", "cp2", "--dropout", 0.2, "--precision", "bf16", "--out", d / "cp"], lambda r: result(r)["loss"] < 6)
    works("its run goes on alone", [*small[: small.index("--steps")], "--steps", 9, "--json", "--out", d / "cp", "--resume"], lambda r: result(r)["steps"] == 9)
    works("context parallel, processes", [APPS / "lockstep", "run", "-n", 2, "--", APPS / "gpt", *small[1:], "--plan", "cp2"], lambda r: abs(json.loads(next(line[line.index("{"):] for line in r.stdout.splitlines() if "{" in line))["loss"] / result(single)["loss"] - 1) < 2e-5)
    refused("ranks that do not divide", [*small, "--ranks", 3, "--plan", "cp2"], "it is for 2 ranks, and there are 3", code=2)
    refused("no ranks", [*small, "--plan", "cp2"], "it is for 2 ranks, and there is 1", code=2)
    refused("heads that cannot be shared", [*small, "--ranks", 8, "--plan", "cp8", "--set", "context_parallel.attention=ulysses"], "cp8 does not divide the 4 heads")
    refused("a context that cannot be cut", [*small, "--ranks", 3, "--plan", "cp3"], "cp3 does not divide the 32 tokens of a sample (context) into 6 parts")
    # Context parallelism in plans: pipeline stages, tensor parallelism, a configuration file.
    small = changed(small, "--model", "gpt:1x32x4")
    single, two = run(*small), run(*small, "--accumulate", 2)
    plans = {"cp2": [], "pp2+cp2": [], "cp2+tp2": ["--set", "context_parallel.attention=ulysses"], "dp2+cp2": ["--set", "context_parallel.attention=ring-contiguous"], "dp2+cp2+zero3": [], "dp2+pp2+cp2+zero1": []}
    for plan, options in plans.items():
        r = run(*small, "--ranks", 8 if plan.count("2") > 2 else 4 if "+" in plan else 2, "--plan", plan, "--out", d / plan, *options)
        near(f"plan {plan}", r, two if "dp2" in plan else single)
    near("copies of what a plan names", run(*small, "--ranks", 8, "--plan", "cp2+tp2"), two)
    config = d / "config.json"
    for stage in (1, 2):
        config.write_text(json.dumps({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1, "zero_optimization": {"stage": stage}}))
        options = [*small[: small.index("--batch")], *small[small.index("--batch") + 2 :], "--ranks", 4, "--plan", "cp2", "--config", config]
        near(f"context parallel by the engine, ZeRO {stage}", run(*options, "--out", d / f"engine{stage}"), two)
    nine = changed(small, "--steps", 9)
    r, expected = run(*nine, "--ranks", 2, "--plan", "pp2", "--out", d / "pp2+cp2", "--resume"), run(*nine, "--ranks", 4, "--plan", "pp2+cp2", "--out", d / "cp2", "--resume")
    near("one plan's run goes on with another", r, expected, 1e-4)
    works("lockstep verify compares their losses", ["lockstep", "verify", "--plans", "pp2@transport=threads:2x2,pp2+cp2@transport=threads:4x2,dp2+cp2@transport=threads:4x1", "--", APPS / "gpt", *small[1:-1]], lambda r: r.stdout.count("losses within") == 2)
    for attention in ("ring", "ulysses"):
        works(f"a plan with {attention}, dropout, bf16 and checkpointed blocks", [*small, "--ranks", 8, "--plan", "pp2+cp2+tp2", "--set", f"context_parallel.attention={attention}", "--dropout", 0.2, "--precision", "bf16", *RECOMPUTE], lambda r: result(r)["loss"] < 6)
    refused("a plan whose slices have too few heads", [*small, "--ranks", 8, "--plan", "cp2+tp4", "--set", "context_parallel.attention=ulysses"], "cp2 does not divide the 1 heads of a tensor-parallel rank", "The nearest plan that works: dp2+cp2+tp2")
    refused("a plan whose context cannot be cut", [*small, "--ranks", 6, "--plan", "pp2+cp3"], "cp3 does not divide the 32 tokens of a sample (context) into 6 parts", "nearest plan that works: ")
    refused("slices that share sequences in Megatron's way too", [*small, "--ranks", 4, "--plan", "cp2+tp2", "--set", "tensor_parallel.sequence_parallel=true"], "cannot be combined with cp2")
    refused("attention of sequences that are not shared", [*small, "--set", "context_parallel.attention=ulysses"], "add cpN to the plan")
    small = changed(small, "--model", "gpt:2x32x4")

    # Expert parallelism.
    chosen = ["--experts", "4,top_k=2,drop_tokens=false"]
    experts = [*small, *chosen]
    single, two = run(*experts), run(*experts, "--accumulate", 2)
    check("experts train", single.returncode == 0 and result(single)["aux_loss"] > 0.009 and result(single)["dropped"] == 0 and result(single)["busiest_expert"] >= 1, single.stdout + single.stderr)
    near("experts on 2 ranks, each with all", run(*experts, "--ranks", 2), two)
    sharded = run(*experts, "--ranks", 2, "--plan", "ep2", "--out", d / "moe")
    near("experts over 2 ranks", sharded, two)
    check("as many parameters as in one process", result(sharded)["parameters"] == result(single)["parameters"], sharded.stdout)
    near("experts over 2 of 4 ranks, accumulation", run(*experts, "--ranks", 4, "--plan", "ep2", "--accumulate", 2), run(*experts, "--accumulate", 8))
    near("experts under ZeRO 3", run(*experts, "--ranks", 2, "--plan", "zero3"), two)
    # second experts are sampled differently
    near("experts and shared sequences", run(*small, "--experts", "4,top_k=2,drop_tokens=false,balance_coef=0", "--ranks", 2, "--plan", "cp2"), run(*small, "--experts", "4,top_k=2,drop_tokens=false,balance_coef=0"), 0.05)
    lines = [json.loads(line) for line in (d / "moe/metrics.jsonl").read_text().splitlines()]
    check("tokens of every expert", len(lines) == 6 and all(sum(line["expert_tokens"]) == 2 * 2 * 32 * 2 and line["aux_loss"] > 0 for line in lines), str(lines[0]))
    works("eval of a saved run", ["gpt", "eval", d / "moe", "--text", text, "--json"], lambda r: 0 < result(r)["loss"] < 6)
    if offers("gpt", "sample"):
        check("sample of a saved run", run("gpt", "sample", d / "moe", "--tokens", 20).returncode == 0)
    run(*experts, "--out", d / "going")
    nine = changed(experts, "--steps", 9)
    works("experts go on", [*nine, "--out", d / "going", "--resume"], lambda r: result(r)["steps"] == 9)
    other = run(*small, "--experts", "4,top_k=1", "--out", d / "going", "--resume")
    check("with other experts it does not", other.returncode == 1 and "top_k was 2 and is now 1" in other.stderr, other.stderr)
    works("experts that drop tokens", [*small, "--experts", "4,capacity_factor=0.5,min_capacity=1,noise=jitter,use_residual=true,z_coef=0.001,every=1", "--precision", "bf16"], lambda r: 0 < result(r)["dropped"] < 1)
    refused("more choices than experts", [*small, "--experts", "2,top_k=3"], "a token cannot go to 3 of 2 experts", code=2)
    refused("a key of experts that is none", [*small, "--experts", "4,topk=2"], "expected KEY=VALUE after the first word, got 'topk=2'", "did you mean top_k?", code=2)
    refused("experts that cannot be shared", [*small, "--experts", 3, "--ranks", 2, "--plan", "ep2"], "ep2 does not divide the 3 experts")
    refused("ranks that cannot share", [*small, "--experts", 4, "--ranks", 2, "--plan", "ep4"], "ep4 does not divide", code=2)
    # Experts combined with everything else: the losses of one process.
    def same(name, r, expected):
        check(name, r.returncode == 0 and result(r)["loss"] == result(expected)["loss"] and result(r)["val_loss"] == result(expected)["val_loss"], r.stdout + r.stderr + expected.stdout)

    four = run(*experts, "--accumulate", 4)
    same("experts in checkpointed blocks", run(*experts, "--accumulate", 4, *RECOMPUTE), four)
    same("experts in a pipeline", run(*experts, "--ranks", 2, "--plan", "pp2", "--accumulate", 4, *RECOMPUTE), four)
    for stage in range(4):
        near(f"experts over ranks under ZeRO {stage}", run(*experts, "--ranks", 4, "--plan", f"ep2+zero{stage}"), four)
    near("experts over ranks, --plan", run(*experts, "--ranks", 4, "--plan", "dp4+ep4+zero1"), four)
    staged = run(*experts, "--ranks", 4, "--plan", "dp2+pp2+ep2+zero1", "--accumulate", 2)
    near("experts over ranks in a pipeline", staged, four)
    check("and what is told of them", all(abs(result(staged)[key] / result(four)[key] - 1) < 1e-5 for key in ("aux_loss", "busiest_expert", "parameters")), staged.stdout + four.stdout)
    near("experts over ranks in slices", run(*experts, "--ranks", 4, "--plan", "dp2+tp2+ep2", "--accumulate", 2), four)
    # Everything combined. The balance loss is computed from each rank's tokens alone.
    one_each = [*small, "--experts", "4,drop_tokens=false,balance_coef=0"]
    pair = run(*one_each, "--accumulate", 2)
    near("experts over ranks, and shared sequences", run(*one_each, "--ranks", 4, "--plan", "cp2+ep2+zero2"), pair)
    for plan in ("dp2+cp2+ep2", "dp2+pp2+cp2+ep2+zero1", "dp2+cp2+tp2+ep2"):
        near(f"experts, plan {plan}", run(*one_each, "--ranks", 4 if plan.count("2") == 3 else 8, "--plan", plan), pair)
    near("experts over ranks in f16", run(*experts, "--ranks", 4, "--plan", "ep2", "--precision", "f16"), four, 1e-3)
    run(*experts, "--accumulate", 4, "--out", d / "one")
    full = run(*nine, "--accumulate", 4, "--out", d / "one", "--resume")
    shared = ["--ranks", 4, "--plan", "ep2"]
    run(*experts, "--ranks", 4, "--plan", "ep2+zero3", "--out", d / "on")
    for name, options in (("shared", ["--ranks", 4, "--plan", "ep2+zero2"]), ("alone", ["--accumulate", 4]), ("staged", ["--ranks", 4, "--plan", "pp2+dp2+ep2+zero1", "--accumulate", 2])):
        shutil.copytree(d / "on", d / name)
        works(f"experts over ranks go on, {name}", [*nine, *options, "--out", d / name, "--resume"], lambda r: abs(result(r)["val_loss"] / result(full)["val_loss"] - 1) < 1e-4)
    (d / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}))
    configured = [*experts, *shared, "--config", d / "ds.json"]
    near("experts over ranks by a config", run(*configured, "--out", d / "ds"), four)
    works("and they go on", [*changed(configured, "--steps", 9), "--out", d / "ds", "--resume"], lambda r: result(r)["steps"] == 9)
    check("eval of that run", run("gpt", "eval", d / "ds", "--text", text, "--json").returncode == 0)
    works("verify compares losses of experts over ranks", ["lockstep", "verify", "--plans", "ddp:2x1,dp2+ep2:2x1", "--", APPS / small[0], *small[1:], "--experts", 4], lambda r: r.stdout.splitlines()[-1] == "identical" and "losses within" in r.stdout)

    # Every plan that an error message suggests can train.
    tiny = ["gpt", "train", "--text", text, "--model", "gpt:4x24x3", "--context", 24, "--batch", 1, "--warmup", 1, "--steps", 1, "--json"]
    six = ["--experts", 6]
    for ranks, plan, *more in ((4, "tp3"), (2, "tp2"), (4, "tp2"), (4, "dp2+tp2"), (6, "tp4"), (3, "dp2+pp2"), (6, "pp5"), (8, "pp3+tp3"), (5, "cp5"), (3, "dp2+cp2"), (4, "ep3", *six), (4, "ep4", *six), (8, "dp2+pp2"),
                               (4, "pp2+ep4", *six), (2, "pp2+zero2"), (3, "tp3+zero3"), (2, "pp2", "--accumulate", 3, "--set", "pipeline.schedule=interleaved"),
                               (2, "pp2", "--accumulate", 2, "--set", "pipeline.schedule=dualpipe-v"), (4, "pp4", "--accumulate", 8, "--set", "pipeline.schedule=dualpipe-v", "--model", "gpt:1x24x3"),
                               (4, "dp2+tp2", "--set", "train_batch_size=2")):
        ours = [*changed(tiny, "--model", more[-1]), *more[:-2]] if "--model" in more else [*tiny, *more]
        r = run(*ours, "--ranks", ranks, "--plan", plan)
        found = re.search(r"\[plan\] \S+ (?:is invalid: |does not work with ).*The nearest plan that works: (\S+)", r.stderr)
        check(f"{plan} on {ranks} ranks {' '.join(map(str, more))} is refused, once, with a suggestion", r.returncode in (1, 2) and found and r.stderr.count("[plan] ") == 1 and "[schedule]" not in r.stderr, f"exit {r.returncode}: {r.stderr}")
        if found:
            works(f"and {found[1]} trains", [*ours, "--ranks", ranks, "--plan", found[1]])
    refused("a plan without experts", [*small, "--ranks", 2, "--plan", "dp2+ep2"], "shares experts, and the model has none")
    refused("experts in every 5th of 2 blocks", [*small, "--experts", "4,every=5"], "expected `every` from 1 to 2, the number of blocks, got 5")

finish()
