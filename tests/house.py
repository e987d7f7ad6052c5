#!/usr/bin/env python3
"""The core and its extensions: which files are which, and counts that may only fall.

The core is what Lockstep exists for; everything else stands on it, in extensions/NAME/. EXTENSIONS names the files that
have not moved there yet. A count above its limit fails; so does one that fell well below it, until the limit follows.
--lower writes the limits down. The last line is "N passed, N failed".
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "tests"))
from layers import USES  # noqa: E402
from public_headers import behind  # noqa: E402

# "folder/": all files in it; "name.*": a header and its sources.
EXTENSIONS = {
    "deepspeed": """
        parallel/onebit/ apps/sparse_command.cpp engine/comms_logger.cpp engine/flops_profiler.cpp
        engine/monitor.cpp engine/one_bit.* engine/reports.h engine/sparse_attention.* inference/candidates.*
        inference/checks.* inference/config.* inference/config_keys.inc inference/engine.* inference/heads.*
        inference/weights.* nn/sparse.*
    """,
    "device_map": "parallel/device_map/",
    "fp8": """
        autograd/fp8.* nn/fp8.* tensor/cpu/fp8.cpp tensor/cuda/fp8.cu tensor/cuda/matmul_fp8.cpp tensor/float8.h
        tensor/fp8.*
    """,
    "generation": "nn/beams.* nn/generate.* nn/sampling.* nn/text_stream.* train/scoring.*",
    "hugging_face": """
        data/added_tokens.* data/bpe.* data/bpe_tables.cpp data/merges.* data/nfc.* data/split_words.*
        data/tokenizer_files.cpp data/tokenizer_json.cpp data/unicode.* data/unicode_classes.inc
        data/unicode_compositions.inc nn/hugging_face/config.* nn/hugging_face/names.*
        nn/hugging_face/pretrained.* nn/hugging_face/rope_config.cpp nn/hugging_face/weights.*
        train/accelerator.* train/arguments.* train/auto.* train/trainer_auto.cpp
    """,
    "lora": "apps/finetune_command.cpp nn/hugging_face/adapter.* nn/lora.* train/lora.*",
    "quantization": """
        nn/quantize.* optim/eight_bit.cpp optim/block_codes.h optim/cpu/step_8bit.cpp tensor/cpu/quantized.*
        tensor/cpu/quantized_dots.inc tensor/cpu/quantized_kernels.* tensor/cpu/quantized_simd.cpp
        tensor/cuda/quantized.cu tensor/quantized.*
    """,
}

# The most that each count may be, and where it shall come.
LIMITS = {
    "lines of the core": (85785, 75000),
    "lines of source, bench/ and examples/": (125945, 114000),
    "lines of tests": (70449, 60000),
    "includes of an extension's header in the core": (51, 0),
    "pairs of extensions that include each other's headers": (0, 0),
    "headers behind lockstep.h": (163, 70),
    "members of the largest struct": (66, 40),
}

SOURCES = (".h", ".cpp", ".cu", ".def", ".inc")


def extension_of(name):
    """The extension that a path belongs to; None: the core."""
    if name.startswith("extensions/"):
        return name.split("/")[1]
    for extension, patterns in EXTENSIONS.items():
        for pattern in patterns.split():
            if name.startswith(pattern) if pattern.endswith("/") else name == pattern or (pattern.endswith(".*") and name.rsplit(".", 1)[0] == pattern[:-2]):
                return extension
    return None


def files(*folders):
    for folder in folders:
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCES and p.is_file())


def is_test(path):
    return "tests" in path.relative_to(ROOT).parts


def lines_of(paths):
    return sum(len(p.read_text(errors="replace").splitlines()) for p in paths)


def largest_struct(paths):
    """The most data members of a struct in a header."""
    most = 0
    for path in paths:
        for body in re.findall(r"^struct [^;{]*\{\n(.*?)^\};", path.read_text(errors="replace"), re.M | re.S):
            members = [line for line in body.split("\n") if re.match(r"  [\w:][^()]*;", line.split("//")[0].rstrip())]
            most = max(most, sum(1 + line.split("//")[0].split("<")[0].count(",") for line in members))
    return most


def counts():
    source = [ROOT / "lockstep.h", *(p for p in files(*sorted({folder.split("/")[0] for folder in USES})) if not is_test(p))]
    owner = {str(p.relative_to(ROOT)): extension_of(str(p.relative_to(ROOT))) for p in source}
    included = [(name, header) for name in owner for header in re.findall(r'^#\s*include "([^"]+)"', (ROOT / name).read_text(errors="replace"), re.M)]
    to_extensions = [(name, header) for name, header in included if owner[name] is None and owner.get(header)]
    between = {(owner[name], owner[header]) for name, header in included if owner[name] and owner.get(header) and owner[name] != owner[header]}
    core = [ROOT / name for name, extension in owner.items() if extension is None]
    return {
        "lines of the core": lines_of(core),
        "lines of source, bench/ and examples/": lines_of([*source, *files("bench", "examples")]),
        "lines of tests": lines_of([*files("tests"), *(p for p in files("extensions") if is_test(p))]),
        "includes of an extension's header in the core": len(to_extensions),
        "pairs of extensions that include each other's headers": len({frozenset(pair) for pair in between if pair[::-1] in between}),
        "headers behind lockstep.h": len(behind("lockstep.h")),
        "members of the largest struct": largest_struct([p for p in core if p.suffix == ".h"]),
    }


def missing():
    """Patterns of EXTENSIONS without a file."""
    names = [str(p.relative_to(ROOT)) for p in files(*sorted({folder.split("/")[0] for folder in USES}))]
    for extension, patterns in EXTENSIONS.items():
        for pattern in patterns.split():
            if not any(name.startswith(pattern.rstrip("*")) for name in names):
                yield f"{extension}: no file {pattern}; take it out of EXTENSIONS in tests/house.py"


def slack(count):
    return count // 200


def main():
    failed, found = 0, counts()
    if "--lower" in sys.argv:
        text = pathlib.Path(__file__).read_text()
        for name, count in found.items():
            if count < LIMITS[name][0]:
                text = re.sub(rf'("{re.escape(name)}": \()\d+', rf"\g<1>{count + slack(count) // 2}", text)
        pathlib.Path(__file__).write_text(text)
        return 0
    for name, count in found.items():
        limit, goal = LIMITS[name]
        print(f"{name}: {count} (at most {limit}, to come to {goal})")
        if count > limit:
            print("  above its limit: move or delete something; a limit is never raised")
        elif count + slack(count) < limit:
            print("  below its limit: run tests/house.py --lower, so that the limit follows")
        failed += count > limit or count + slack(count) < limit
    lost = list(missing())
    for problem in lost:
        print(problem)
    failed += bool(lost)
    print(f"{len(found) + 1 - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
