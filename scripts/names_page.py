#!/usr/bin/env python3
"""Writes docs/names.md from docs/names.tsv: names of PyTorch, DeepSpeed and Hugging Face beside ours.

A line of the table has tabs between: their name, ours, a line of C++ that uses it, and the header if that is not
lockstep.h (`vision` stands for <lockstep/vision.h>). `#` and `##` begin sections; a line without tabs is a paragraph.
tests/docs/names.py compiles every line.
"""
import pathlib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE, PAGE = ROOT / "docs/names.tsv", ROOT / "docs/names.md"
OPENING = """# Names of PyTorch, DeepSpeed and Hugging Face

This page lists what you know from PyTorch, DeepSpeed, accelerate and Transformers beside its
counterpart here, with a line of C++ that uses it. Search it for a name. A name that is missing has
no counterpart, or no row yet. [Differences](differences.md) tells where results or errors differ.

`namespace ls = lockstep`. The last column names the header if `#include <lockstep.h>` does not
suffice: `vision` means `#include <lockstep/vision.h>`, and leads to a page about it. Keyword
arguments are fields of a struct, in the order in which it declares them: `{.lr = 0.1}`.

Members of a tensor give views, conversions and values. What computes is a function: `x.exp()` is
`ls::exp(x)`, and `logits.argmax(-1)` is `ls::argmax(logits, -1)`.

In the lines `t` and `u` are tensors, `x`, `y`, `w` and `b` are variables, `net` is a module, `opt`
an optimizer and `group` a process group. [All of them](#variables) are listed at the end.
"""
VARIABLES = """
## Variables

| name | type | what it is |
|---|---|---|
"""
ENDING = """
## How this page is made

The page is written by `scripts/names_page.py` from [names.tsv](names.tsv). `tests/docs/names.py`
compiles every line of it.
"""
# The variables that rows use, by the header that declares their types.
GIVEN = {
    "": [
        ("t, u, i, m, z", "ls::Tensor", "`i` has integers, `m` is bool, `z` complex"),
        ("x, y, w, b", "ls::Variable", "tensors with gradients"),
        ("device", "ls::Device", ""),
        ("stream", "ls::Stream", ""),
        ("event, start", "ls::Event", ""),
        ("graph", "ls::Graph", ""),
        ("training", "bool", ""),
        ("fn", "std::function<ls::Variable(const std::vector<ls::Variable>&)>", "a function of variables"),
        ("closure", "std::function<ls::Variable()>", "computes the loss and its gradients"),
        ("hook", "ls::GradHook", "a function of a gradient"),
        ("layer", "ls::nn::Linear", ""),
        ("layers", "ls::nn::ModuleList<ls::nn::Linear>", ""),
        ("net", "ls::nn::Sequential", "or any other module"),
        ("model", "std::shared_ptr<ls::nn::Module>", ""),
        ("gpt", "ls::nn::GPT", ""),
        ("opt", "ls::optim::AdamW", "or any other optimizer"),
        ("schedule", "ls::optim::LambdaLR", "or any other schedule"),
        ("scaler", "ls::optim::GradScaler", ""),
        ("dataset", "ls::data::TensorDataset", ""),
        ("loader", "ls::data::DataLoader<>", ""),
        ("sampler", "ls::data::DistributedSampler", ""),
        ("tokenizer", "ls::data::Tokenizer&", ""),
        ("group", "ls::dist::ProcessGroup&", "such as `ls::dist::world()`"),
        ("work", "ls::dist::Work", ""),
        ("mesh", "ls::dist::GroupMesh", ""),
        ("ddp", "ls::parallel::DistributedDataParallel", ""),
        ("comm_hook", "ls::parallel::CommHook", ""),
        ("zero", "ls::zero::Zero", ""),
        ("saver", "ls::checkpoints::Saver", ""),
        ("engine", "ls::engine::Engine<ls::nn::Sequential>", ""),
        ("micro_batches", "ls::pipeline::Data", "a function that returns a micro-batch"),
        ("log", "std::function<void(const std::string&)>", ""),
        ("job", "ls::train::TrainJob&", ""),
        ("options", "ls::train::TrainerOptions", ""),
        ("trainer", "ls::train::Trainer", ""),
        ("run", "ls::train::RunState&", "what a callback gets"),
        ("compute_metrics", "std::function<std::vector<std::pair<std::string, double>>(const ls::train::Predictions&)>", ""),
    ],
    "parallel": [
        ("specs", "std::vector<ls::pipeline::LayerSpec>", ""),
        ("recompute", "ls::parallel::ActivationCheckpoints", ""),
    ],
    "distributions": [("normal", "ls::distributions::Normal", "")],
    "optimizers": [("lbfgs", "ls::optim::LBFGS", ""), ("average", "ls::optim::WeightAverage", "")],
    "metrics": [("metric", "ls::metrics::Accuracy", "or any other metric")],
    "summary": [("writer", "ls::SummaryWriter", "")],
    "compression": [("power", "ls::parallel::PowerSgd", ""), ("local", "ls::parallel::PostLocalSgd", "")],
    "checkpoint_tools": [("opened", "ls::checkpoints::Opened", "what `open_checkpoint()` returned")],
    "deepspeed": [("profiler", "ls::engine::FlopsProfiler", "")],
    "hugging_face": [
        ("acc", "ls::train::Accelerator", ""),
        ("prepared", "ls::train::PreparedModel<ls::nn::Sequential>", "what `prepare()` returned for `net`"),
        ("counter", "struct { ls::data::Json state(); void load_state(const ls::data::Json&); }&", "a class of yours"),
        ("args", "ls::train::TrainingArguments", ""),
    ],
    "lora": [("lora", "ls::nn::Lora", "")],
}


class Row(NamedTuple):
    line: int  # in the table
    theirs: str
    ours: str
    code: str
    header: str  # "": lockstep.h


def rows(text):
    """The rows of a table."""
    lines = ((number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1))
    return [Row(number, *(fields + ["", ""])[:3], fields[3] if len(fields) > 3 else "") for number, fields in lines if len(fields) > 1]


def file_of(header):
    """The file of a header, below the root."""
    if not header:
        return "lockstep.h"
    return f"lockstep/{header}.h" if (ROOT / f"lockstep/{header}.h").exists() else f"extensions/{header}/{header}.h"


def cell_of(header):
    """What the last column says: a link to an extension's page, or the name of a header of the core."""
    target = f"../extensions/{header}/README.md"
    return "" if not header else f"[{header}]({target})" if (PAGE.parent / target).exists() else f"`{header}`"


def page(text):
    found = {row.line: row for row in rows(text)}
    parts, in_table = [OPENING], False
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        row = found.get(number)
        if row:
            if not in_table:
                parts.append("\n| theirs | here | a line | header |\n|---|---|---|---|\n")
            parts.append(f"| `{row.theirs}` | `{row.ours}` | `{row.code}` | {cell_of(row.header)} |\n")
        elif line:
            parts.append(f"\n{'#' if line.startswith('#') else ''}{line}\n")
        in_table = row is not None
    variables = [f"| `{names.replace(', ', '`, `')}` | `{kind}` | {what} |\n" for given in GIVEN.values() for names, kind, what in given]
    return "".join([*parts, VARIABLES, *variables, ENDING])


if __name__ == "__main__":
    PAGE.write_text(page(TABLE.read_text()))
