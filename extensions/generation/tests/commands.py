#!/usr/bin/env python3
"""`gpt sample` as a user runs it.

commands.py BUILD          ends with "N passed, N failed"
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
from programs import APPS, check, finish, offers, refused, result, run  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    text = d / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    tiny = ["--text", text, "--model", "gpt:1x32x2", "--context", 32, "--batch", 4, "--warmup", 5, "--eval-every", 10, "--dropout", 0.1, "--json"]
    check("gpt --help", all(offers("gpt", name) for name in ("sample", "score")) and offers("gpt", "eval", "--stride"))
    refused("missing model", ["gpt", "sample", d / "none"], "no such file or folder")
    (d / "broken").mkdir()
    (d / "broken/config.json").write_text('{"program": "gpt", "vocab": 256,}')
    refused("broken config", ["gpt", "sample", d / "broken"], "config.json:1:")
    full = run("gpt", "train", *tiny, "--steps", 30, "--out", d / "whole")
    check("gpt train", full.returncode == 0, full.stderr)

    sample = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50)
    check("sample", sample.returncode == 0 and sample.stdout.startswith("the ") and len(sample.stdout) >= 54, sample.stderr)
    as_json = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50, "--json")
    check("sample --json", as_json.returncode == 0 and len(result(as_json)["text"]) > 0, as_json.stdout + as_json.stderr)
    again = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50)
    stop = re.search("[ -~]{2}", sample.stdout[8:])[0]
    stopped = run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 50, "--stop", stop, "--stop", "no such text")
    check("sample --stop", stopped.stdout == "the " + sample.stdout[4:4 + sample.stdout[4:].index(stop)] + "\n", stopped.stdout + stopped.stderr)
    greedy, beams = (result(run("gpt", "sample", d / "whole", "--prompt", "the ", "--tokens", 20, "--json", *more)) for more in (["--greedy"], ["--beams", 4]))
    check("sample --greedy and --beams", greedy["text"] != "" and beams["text"] != "", f"{greedy} {beams}")
    refused("an empty stop string", ["gpt", "sample", d / "whole", "--prompt", "a", "--stop", ""], "stop strings of at least one byte, got an empty one", code=2)
    check("a seed gives one text", again.stdout == sample.stdout)
    with open("/dev/full", "w") as nowhere:
        r = subprocess.run([str(APPS / "gpt"), "sample", str(d / "whole"), "--tokens", "2"], stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=120)
    check("gpt sample > /dev/full", r.returncode == 1 and "standard output cannot be written (No space left on device)" in r.stderr, f"{r.returncode}: {r.stderr}")
finish()
