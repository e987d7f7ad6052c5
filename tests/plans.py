#!/usr/bin/env python3
"""Plans that refusals suggest: each of them trains.

tests/plans.py BUILD_FOLDER          ends with "N passed, N failed"

A refusal names "the nearest plan" that works. If it knows only the ranks, it adds that model and configuration must allow that
plan: then the next refusal, which knows both, must name one that does.
"""
import concurrent.futures
import itertools
import random
import re

from programs import check, finish, run, workplace

PLANS = ("tp2", "tp3", "tp4", "tp8", "pp2", "pp3", "pp5", "pp6", "pp8", "cp2", "cp3", "cp5", "ep2", "ep3", "ep4", "ep6", "zero2", "tp2+zero1", "pp2+zero2", "tp2+zero3", "dp2+pp2", "dp2+tp2", "dp3+pp2", "cp2+tp2", "pp2+tp2",
         "pp2+cp2+zero3", "dp2+ep2", "dp6+ep3", "pp2+ep2", "tp3+ep2", "dp2+pp2+tp2+zero1")
MODELS = (("gpt:4x24x3",), ("gpt:1x24x2",), ("llama:3x24x6",), ("gpt:4x24x3", "--experts", 6), ("gpt:2x24x4", "--experts", "4,every=1"))
OPTIONS = ((), ("--accumulate", 3, "--set", "pipeline.schedule=interleaved"), ("--accumulate", 4, "--set", "pipeline.schedule=interleaved"), ("--accumulate", 4, "--set", "pipeline.schedule=dualpipe-v"),
           ("--set", "context_parallel.attention=ulysses"), ("--set", "tensor_parallel.sequence_parallel=true"), ("--set", "flops_profiler.enabled=true"), ("--set", 'sparse_attention={"mode":"bigbird","block":4}'),
           ("--set", "train_batch_size=6"), ("--set", "train_batch_size=4", "--set", "zero_optimization.stage=2"), ("--precision", "fp8"), ("--precision", "bf16", "--set", "data_types.grad_accum_dtype=fp32"),
           ("--optimizer", "onebit-adam,freeze_step=1"), *(("--set", f"optimizer.type={name}") for name in ("Lamb", "Adafactor", "AdamW8bit", "Muon")))
# every refusal of these was once answered with a plan that is refused
ONCE_WRONG = ((4, "tp3", MODELS[0]), (8, "tp8", (*MODELS[4], *OPTIONS[12])), (2, "tp2+zero1", (*MODELS[0], *OPTIONS[12])), (8, "dp2+pp2+tp2", (*MODELS[0], *OPTIONS[12])), (6, "dp6", (*MODELS[3], *OPTIONS[5])),
              (4, "cp2+tp2", (*MODELS[4], *OPTIONS[5])), (2, "tp2+zero3", (*MODELS[0], *OPTIONS[2])))
SUGGESTED = re.compile(r"nearest (?:valid )?plan(?: that (?:can|works))?: (\S+?)(?:,|\.?$| (\(if model and configuration allow it\)))", re.M)
SAMPLED = 200  # of all combinations


def cases():
    every = [(ranks, plan, (*model, *options)) for ranks, plan, model, options in itertools.product(range(1, 9), PLANS, MODELS, OPTIONS)]
    return [*ONCE_WRONG, *random.Random(47).sample(every, SAMPLED)]


def follow(case):
    """[(plan, is sure, said)]: what was asked, then what each refusal suggested, until something trains or nothing is suggested."""
    ranks, plan, options = case
    path, sure = [], False
    while True:
        r = run("gpt", "train", *ours, "--model", *options, "--ranks", ranks, "--plan", plan, LOCKSTEP_THREADS="1")
        path.append((plan, sure, "" if r.returncode == 0 else r.stderr.strip()))
        found = SUGGESTED.search(r.stderr)
        if r.returncode == 0 or not found or len(path) > 3:
            return path
        plan, sure = found[1], not found[2]


with workplace(40) as (_, text), concurrent.futures.ThreadPoolExecutor(2) as pool:
    ours = ["--text", text, "--context", 24, "--batch", 1, "--steps", 1, "--eval-batches", 1]
    suggested = 0
    for (ranks, plan, options), path in zip(cases(), pool.map(follow, cases())):
        for number, (next_plan, sure, said) in enumerate(path[1:], 1):
            suggested += 1
            # a suggestion with "if" may be refused, by who knows the model or the configuration
            check(f"gpt train --model {' '.join(map(str, options))} --ranks {ranks} --plan {plan}: the suggested {next_plan} trains", not said or (not sure and number == 1), said)
    check("enough plans were suggested", suggested > SAMPLED / 3, suggested)
finish()
