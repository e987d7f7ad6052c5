#!/usr/bin/env python3
"""`lockstep checkpoint` on checkpoints written by this script: docs/checkpoints.md alone suffices to read and write
them.

commands.py BUILD
"""
import hashlib
import json
import pathlib
import shutil
import struct
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
import programs  # noqa: E402
from programs import check, finish, offers  # noqa: E402


def run(*args):
    return programs.run("lockstep", "checkpoint", *args)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def blake2b(data):
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def safetensors(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    return header.pop("__metadata__", {}), {name: (e["dtype"], e["shape"], data[8 + length :][slice(*e["data_offsets"])]) for name, e in header.items()}


def write_checkpoint(folder, tensors, cuts, **more):
    """tensors: name -> (shape, values); cuts: the first element of each part, the same for all tensors."""
    folder.mkdir(parents=True)
    logical, held = {}, {}
    for name, (shape, values) in tensors.items():
        logical[name] = {"dtype": "f32", "shape": shape, "parts": []}
        bounds = [c for c in cuts if c < len(values)] + [len(values)]
        for rank, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            file, part = f"rank-{rank:05}.safetensors", name if end - begin == len(values) else f"{name}[{begin}:{end}]"
            raw = struct.pack(f"<{end - begin}f", *values[begin:end])
            logical[name]["parts"].append({"file": file, "name": part, "begin": begin, "end": end, "crc32c": crc32c(raw)})
            held.setdefault(file, {})[part] = (shape if part == name else [end - begin], values[begin:end])
    files = {}
    for file, parts in held.items():
        content = safetensors(parts, {"checkpoint": "0123456789abcdef", "file": file, "tag": folder.name})
        (folder / file).write_bytes(content)
        files[file] = {"bytes": len(content), "blake2b": blake2b(content)}
    manifest = {"format": "lockstep-checkpoint", "version": 1, "id": "0123456789abcdef", "tag": folder.name, "sequence": 1, "world": len(files), "plan": "by hand", "files": files,
                "tensors": logical, "aliases": {}, "numbers": {}, "client_state": None, **more}
    body = json.dumps(manifest)[1:]
    (folder / "manifest.json").write_text(f'{{"blake2b": "{blake2b(body.encode())}",\n{body}')


with tempfile.TemporaryDirectory() as name:
    d = pathlib.Path(name)
    attention = [float(i) for i in range(12)]
    tensors = {"model.tokens.weight": ([2, 2], [1.0, 2.0, 3.0, 4.0]), "model.blocks.0.attention.in_proj.weight": ([6, 2], attention), "optimizer.exp_avg": ([1], [0.5])}
    write_checkpoint(d / "run/step-1", tensors, [0, 3, 4], aliases={"model.head.weight": "model.tokens.weight"}, numbers={"step": 1, "lr": 0.1, "best": {"double": "inf"}}, client_state={"epoch": 2})
    (d / "run/latest").write_text("step-1\n")

    r = run("inspect", d / "run")
    words = ("step-1", "3 ranks, plan by hand", "3 in 3 files", "model.tokens.weight", "(6, 2)", "3 parts", "is model.tokens.weight", "lr  0.1", "best  inf", '{"epoch": 2}')
    check("inspect", r.returncode == 0 and all(w in r.stdout for w in words), r.stdout + r.stderr)
    shutil.copytree(d / "run", d / "of a program/checkpoints")
    r = run("inspect", d / "of a program")  # the folder of a run
    check("inspect a run", r.returncode == 0 and all(w in r.stdout for w in words), r.stdout + r.stderr)
    r = run("inspect", d / "run/step-1", "--json")
    check("inspect --json", r.returncode == 0 and json.loads(r.stdout)["tensors"]["model.tokens.weight"] == {"dtype": "f32", "shape": [2, 2], "parts": 2} and json.loads(r.stdout)["world"] == 3, r.stdout + r.stderr)
    r = run("verify", d / "run", "--tag", "step-1")
    check("verify", r.returncode == 0 and "3 tensors in 3 files" in r.stdout and "as they were saved" in r.stdout, r.stdout + r.stderr)

    r = run("merge", d / "run", d / "one")
    metadata, merged = read_safetensors(d / "one/step-1/rank-00000.safetensors") if r.returncode == 0 else ({}, {})
    check("merge", r.stdout.strip() == str(d / "one/step-1") and merged["model.blocks.0.attention.in_proj.weight"] == ("F32", [6, 2], struct.pack("<12f", *attention)), r.stdout + r.stderr)
    check("a merged checkpoint verifies", run("verify", d / "one").returncode == 0)
    manifest = json.loads((d / "one/step-1/manifest.json").read_text())
    check("what is written is what the format says", manifest["numbers"] == {"step": 1, "lr": 0.1, "best": {"double": "inf"}} and manifest["client_state"] == {"epoch": 2}
          and manifest["tensors"]["optimizer.exp_avg"]["parts"] == [{"file": "rank-00000.safetensors", "name": "optimizer.exp_avg", "begin": 0, "end": 1, "crc32c": crc32c(struct.pack("<f", 0.5))}]
          and manifest["files"]["rank-00000.safetensors"]["blake2b"] == blake2b((d / "one/step-1/rank-00000.safetensors").read_bytes()), json.dumps(manifest, indent=1))

    r = run("export", d / "run", d / "model.safetensors")
    metadata, plain = read_safetensors(d / "model.safetensors")
    check("export", r.returncode == 0 and metadata == {"format": "pt", "head.weight": "tokens.weight"} and set(plain) == {"tokens.weight", "blocks.0.attention.in_proj.weight"}, f"{r.stderr} {metadata} {plain}")
    if offers("lockstep", "checkpoint", "export", "--hugging-face"):
        r = run("export", d / "run", d / "model.safetensors", "--dtype", "bf16", "--hugging-face")
        metadata, plain = read_safetensors(d / "model.safetensors")
        turned = [attention[2 * column + row] for row in range(2) for column in range(6)]
        expected = b"".join(struct.pack("<f", value)[2:] for value in turned)  # exact in bf16
        check("export as Transformers has it", r.returncode == 0 and plain["transformer.h.0.attn.c_attn.weight"] == ("BF16", [2, 6], expected) and "transformer.wte.weight" in plain, r.stderr + str(plain))
    r = run("export", d / "run", d / "x", "--prefix", "optimizer.")
    check("export another part", read_safetensors(d / "x")[1] == {"exp_avg": ("F32", [1], struct.pack("<f", 0.5))}, r.stderr)

    damaged = d / "run/step-1/rank-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    r = run("verify", d / "run")
    check("verify finds it", r.returncode == 1 and f"{damaged}: its content has changed" in r.stdout and "damaged: model.blocks.0.attention.in_proj.weight[3:4]\n" in r.stdout and "1 problem\n" in r.stdout, r.stdout + r.stderr)
    for command in (["merge", d / "run", d / "two"], ["export", d / "run", d / "two"]):
        r = run(*command)
        check(f"{command[0]} refuses what is damaged", r.returncode == 1 and str(damaged) in r.stderr and not (d / "two").exists(), r.stdout + r.stderr)
    for text, args, code in (("holds no checkpoint", ["inspect", d / "none"], 1), ("expected a checkpoint of tag step-2", ["verify", d / "run", "--tag", "step-2"], 1),
                             ("bf61", ["export", d / "run", d / "y", "--dtype", "bf61"], 2), ("expected another folder", ["merge", d / "one", d / "one"], 1), ("--help", [], 2)):
        r = run(*args)
        check(f"refused: {text}", r.returncode == code and text in r.stderr, f"exit {r.returncode}: {r.stderr}{r.stdout}")
    (d / "run/latest").unlink()
    r = run("inspect", d / "run")
    check("latest is missing", "warning: " in r.stderr and "the newest complete one" in r.stderr, r.stderr)
finish()
