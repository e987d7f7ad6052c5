#!/usr/bin/env python3
"""`lockstep sparse`: what it prints and draws, and what it refuses. `gpt train` with the key sparse_attention.

commands.py BUILD          ends with "N passed, N failed"
"""
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import check, finish, refused, run  # noqa: E402

r = run("lockstep", "sparse", '{"mode": "fixed"}', "--tokens", 144)
check("sparse prints the blocks", r.returncode == 0 and "\n#\n##\n###\n####\n...##\n...###\n...####\n...#####\n...#...##\n" in r.stdout and "27 of 45, up to the diagonal" in r.stdout,
      r.stdout + r.stderr)
r = run("lockstep", "sparse", '{"train_batch_size": 1, "seed": 3, "sparse_attention": {"mode": "fixed"}}', "--tokens", 144, "--bidirectional")
check("of a file, bidirectional", r.returncode == 0 and "51 of 81\n" in r.stdout and "####...##" in r.stdout, r.stdout + r.stderr)
with tempfile.TemporaryDirectory() as folder:
    picture = pathlib.Path(folder) / "layout.svg"
    r = run("lockstep", "sparse", '{"mode": "bigbird", "num_random_blocks": 1, "different_layout_per_head": true}', "--heads", 3, "--svg", picture)
    check("sparse draws", r.returncode == 0 and picture.read_text().count("head ") == 3 and picture.read_text().endswith("</svg>\n"), r.stdout + r.stderr)
for arguments, message in ((("{}", "--tokens", 0), "--tokens"), (('{"mode": "fixd"}',), "did you mean"), (('{"sparse_attention": false}',), "got none; write the block"),
                           (('{"attention": "unidirectional"}', "--bidirectional"), "contradicts"), (('{"horizontal_global_attention": true}',), "needs bidirectional"),
                           (('{"block": 1}', "--tokens", 10000), "expected at most 8192 blocks, got 10000 tokens in blocks of 1"),
                           (("{}", "--tokens", 10000, "--svg", "/nowhere/x.svg"), "expected 1 to 512 blocks for a picture")):
    r = run("lockstep", "sparse", *arguments)
    check(f"sparse refuses {arguments}", r.returncode in (1, 2, 105) and message in r.stdout + r.stderr, f"{r.returncode} {r.stdout} {r.stderr}")

with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    model = ["gpt", "train", "--text", text, "--model", "gpt:1x32x2", "--context", 32, "--dropout", 0.1, "--eval-every", 10, "--json"]
    full = dict(train_batch_size=8, train_micro_batch_size_per_gpu=2, optimizer={"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                scheduler={"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 3, "total_num_steps": 12}}, gradient_clipping=0.5, seed=7)

    def config(name, **keys):
        path = d / f"{name}.json"
        path.write_text(json.dumps(keys))
        return path

    def train(name, plan, file, *more):
        """plan: (ranks, accumulation). Returns what --trace-bits wrote."""
        trace = d / f"{name}.trace"
        r = run(*model, "--config", file, "--accumulate", plan[1], "--trace-bits", trace, *more, "--ranks", plan[0])
        check(f"{name} ends well", r.returncode == 0, r.stdout + r.stderr)
        return trace.read_text() if trace.exists() else "none"

    # Sparse attention: from the file, under any plan, and from the run's folder when resumed.
    dense = config("dense", **full)
    end = train("dense", (1, 4), dense, "--steps", 3).splitlines()
    sparse = config("sparse", sparse_attention={"mode": "bigbird", "block": 4, "num_random_blocks": 1}, **full)
    r = run(*model, "--config", sparse, "--accumulate", 4, "--steps", 6, "--out", d / "sparse")
    check("gpt with sparse attention says where", r.returncode == 0 and "sparse_attention: bigbird, blocks of 4, in 1 of 1 MultiHeadAttention" in r.stderr, r.stderr)
    losses = [train(f"sparse {plan}", plan, sparse, "--steps", 3, *more) for plan, more in (((1, 4), ()), ((2, 4), ("--plan", "pp2")), ((4, 1), ()))]
    check("the same bits under every plan", len(set(losses)) == 1, str(losses))
    check("other than dense", losses[0].splitlines()[-1] != end[2])
    found = [json.loads(run("gpt", "eval", *what, "--text", text, "--json").stdout)["loss"] for what in ([d / "sparse"], )]
    settings = json.loads((d / "sparse/config.json").read_text())
    settings["engine"]["sparse_attention"] = None
    (d / "changed").mkdir()
    for part in (d / "sparse").iterdir():
        if part.name != "config.json":
            (d / "changed" / part.name).symlink_to(part)
    (d / "changed/config.json").write_text(json.dumps(settings))
    found.append(json.loads(run("gpt", "eval", d / "changed", "--text", text, "--json").stdout)["loss"])
    check("eval attends as the run did", found[0] != found[1], str(found))
    for flags in ((), ("--set", "sparse_attention.block=8")):
        file = dense if not flags else sparse
        refused(f"resume with other blocks {flags}", [*model, "--config", file, "--accumulate", 4, "--steps", 8, "--out", d / "sparse", "--resume", *flags], "needs the same run, but sparse_attention was", code=1)
    refused("blocks of another mode", [*model, "--config", sparse, "--set", "sparse_attention.num_local_blocks=4", "--steps", 1], "only applies to mode fixed, but mode is bigbird", code=2)
    refused("blocks and parts of sequences", [*model, "--config", sparse, "--plan", "cp2", "--ranks", 2, "--steps", 1], "sparse_attention with cp2 is not supported", "The nearest plan that works: dp2")

# Files of DeepSpeed that switch it off.
for name in ("tutorial", "ds_switched_off"):
    text = (ROOT / f"tests/golden/configs/{name}.config").read_text()
    r, other = (run("lockstep", "config", said) for said in (text, text.replace("{", '{"sparse_attention": false,', 1)))
    check(f"{name}, switched off", r.returncode == 0 and other.returncode == 0 and "sparse_attention" in other.stdout, other.stderr)
finish()
