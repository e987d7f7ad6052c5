#!/usr/bin/env python3
"""Numbers that pages promise are those that tests hold the library to.

tests/docs/tolerances.py          ends with "N passed, N failed"

A row: the page and its words, the source and its code; NUMBER stands for the number in both. "2 %" is 2e-2.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NUMBER = r"(\d[\d.]*(?:e-?\d+)?(?: %)?)"
ROWS = [
    # losses of plans that split sums
    ("verify.md", "They must agree within NUMBER where products are in f32", "extensions/launcher/programs/verify_command.cpp", '"f32" ? NUMBER : '),
    ("verify.md", "and within NUMBER in 16 bits", "extensions/launcher/programs/verify_command.cpp", '"f32" ? 1e-4 : NUMBER;'),
    ("mesh.md", "| f32 | NUMBER; over 50 steps", "extensions/launcher/programs/verify_command.cpp", '"f32" ? NUMBER : '),
    ("mesh.md", "over 50 steps at usual rates it is less than NUMBER |", "tests/parallel/tensor_parallel/training_test.cpp", "off <= NUMBER, "),
    ("mesh.md", "| f16, bf16 (parameters or `--precision`), fp8 | NUMBER |", "extensions/launcher/programs/verify_command.cpp", '"f32" ? 1e-4 : NUMBER;'),
    ("tensor-parallel.md", "| f32, NUMBER steps at usual rates, with dropout, clipping and replicas |", "tests/parallel/tensor_parallel/training_test.cpp", 'TEST_CASE("NUMBER steps with dropout, clipping and copies'),
    ("tensor-parallel.md", "at usual rates, with dropout, clipping and replicas | less than NUMBER of the loss", "tests/parallel/tensor_parallel/training_test.cpp", "off <= NUMBER, "),
    ("tensor-parallel.md", "at usual rates, with dropout, clipping and replicas | less than NUMBER of the loss", "tests/tensor_parallel.py", "near(mine, expected, NUMBER)"),
    ("tensor-parallel.md", "| f64, all gradients, for 1, 2, 3, 4 and 8 ranks | NUMBER |", "tests/parallel/tensor_parallel/util.h", "double tolerance = NUMBER)"),
    ("sequence-parallel.md", "| attention and its gradients, f64, 1 to 8 ranks, with and without a causal mask | to NUMBER |", "tests/parallel/sequence/attention_test.cpp", "c.dtype == f64 ? NUMBER :"),
    ("sequence-parallel.md", "| a GPT's loss and gradients over data x context ranks, f64 | to NUMBER |", "tests/parallel/sequence/context_test.cpp", "gradients(*full)) < NUMBER)"),
    ("moe.md", "in f64 to NUMBER with all gradients", "tests/parallel/moe/layer_test.cpp", "expected.tensor().narrow(0, first, n)) < NUMBER)"),
    # every mix of plan, precision and optimizer
    ("train.md", "| the same with fp16 and `pp` | within NUMBER |", "tests/train/plans_test.cpp", '!onebit ? NUMBER : m.precision'),
    ("train.md", "| plans with `tp` or `cp`, which split sums | within NUMBER in f32", "tests/train/plans_test.cpp", "onebit ? 0.2 : NUMBER;"),
    ("train.md", "which split sums | within 1e-4 in f32, NUMBER in 16 bits", "tests/train/plans_test.cpp", "!= \"f32\" ? NUMBER : onebit"),
    ("train.md", "own compression error | within NUMBER in f32", "tests/train/plans_test.cpp", 'onebit ? NUMBER : 1e-4'),
    ("train.md", "own compression error | within 20 % in f32, NUMBER in 16 bits", "tests/train/plans_test.cpp", "!= \"f32\" ? NUMBER : onebit"),
    ("../extensions/hugging_face/training.md", "of NUMBER steps with Transformers' Trainer", "extensions/hugging_face/tests/arguments_test.cpp", "the curve of NUMBER steps of Transformers' Trainer"),
    ("../extensions/hugging_face/training.md", "steps with Transformers' Trainer, to NUMBER.", "extensions/hugging_face/tests/arguments_test.cpp", "std::abs(curve[i] - theirs[i]) <= NUMBER *"),
    # a device's results
    ("../extensions/fp8/README.md", "Tests allow NUMBER of it", "tests/tolerances.h", "{Near::product_fp8, 0, NUMBER,"),
    ("cuda.md", "Its gelu is an approximation, within NUMBER of ours in f32", "tests/tolerances.h", "{Near::product_gelu, 1e-13, NUMBER,"),
    # others
    ("../extensions/sparse_attention/README.md", "outputs and gradients agree to NUMBER in every mode", "extensions/sparse_attention/tests/layouts_test.cpp", "largest(a[i], b[i]) <= NUMBER * reach"),
    ("../extensions/quantization/README.md", "and outputs are within NUMBER.", "extensions/quantization/tests/quantize_test.cpp", 'at("weight_only")) <= NUMBER)'),
    ("decisions.md", "in f32 to NUMBER. *Excludes:* one loose", "extensions/hugging_face/tests/pretrained_test.cpp", 'wanted("logits")) <= NUMBER)'),
    ("faults.md", "memory and descriptors stay constant within NUMBER", "tests/soak.py", "late <= early * 1.0NUMBER)"),
]


def found(path, words):
    """The number at NUMBER's place in these words of a file, whose lines may break anywhere; None if they are not there."""
    text = re.sub(r"\s+", " ", path.read_text())
    hit = re.search(re.escape(words).replace("NUMBER", NUMBER).replace(r"\ ", " "), text)
    if not hit:
        return None
    number = hit[1].rstrip(".")
    return float(number[:-2]) / 100 if number.endswith(" %") else float(number)


failed = 0
for page, words, source, code in ROWS:
    promised, held = found(ROOT / "docs" / page, words), found(ROOT / source, code)
    if source.endswith("soak.py") and held is not None:
        held /= 100  # of 1.02
    if promised is None or promised != held:
        failed += 1
        print(f"FAIL {page}: '{words}' is {promised}; {source}: '{code}' is {held}")
print(f"{len(ROWS) - failed} passed, {failed} failed")
sys.exit(failed > 0)
