#!/usr/bin/env python3
"""--trace of the programs, and `lockstep trace`, `report` and `simulate` as a user runs them, also with killed ranks.

tests/trace_command.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import html.parser
import json
import os
import shutil
import signal
import subprocess
import time

from leftovers import left_behind
from programs import APPS, changed, check, finish, refused, run, workplace, works


def records(path, full=True):
    text = path.read_text()
    return json.loads(text if full else text[: text.rindex(",\n")] + "]")


def broken_rules(records):
    """What Perfetto would drop or misread, by the rules of Chrome's trace format."""
    named, rows, broken = set(), {}, []
    for r in records:
        kind, place = r["ph"], (r["pid"], r["tid"])
        if kind == "M":
            named.add((r["name"], *place))
        elif r["ts"] < 0 or kind not in "XCi" or (kind == "C" and not all(type(value) in (int, float) for value in r["args"].values())):
            broken.append(r)
        elif kind == "X":
            rows.setdefault(place, []).append((round(r["ts"] * 1000), -round(r["dur"] * 1000), r["name"]))
    for place, spans in rows.items():
        if ("thread_name", *place) not in named or ("process_name", place[0], 0) not in named:
            broken.append(f"no name for {place}")
        ends = []  # of the spans around the next one; a span must not end after them
        for begin, minus, name in sorted(spans):
            while ends and ends[-1] <= begin:
                ends.pop()
            if minus > 0 or (ends and begin - minus > ends[-1]):
                broken.append(f"{name} at {begin} ns on {place} ends after the span around it")
            ends.append(begin - minus)
    return broken


class Page(html.parser.HTMLParser):
    """The text of a page, and external resources that it would load."""

    def __init__(self, path):
        super().__init__()
        self.words, self.outside, self.open = "", [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.outside += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.outside.append(f"</{tag}>")

    def handle_data(self, data):
        self.words += data


with workplace() as (d, text):
    gpt = ["gpt", "train", "--text", text, "--model", "gpt:2x32x2", "--context", 32, "--batch", 4, "--eval-every", 100, "--json"]

    # shards are cut at blocks, so small ones would be mostly padding
    wide = changed(gpt, "--model", "gpt:2x128x2")

    # One rank: a file, a run's folder, its report.
    refused("a file in a folder that is not there is refused", [*gpt, "--steps", 6, "--out", d / "run", "--trace", d / "run/trace/rank-0.json"], "cannot be written: No such file")
    r = run(*gpt, "--steps", 6, "--out", d / "run", "--trace", d / "run/trace")
    all_ = records(d / "run/trace/rank-0.json")
    names = {record["name"] for record in all_}
    check("gpt --trace", r.returncode == 0 and {"step 5", "forward 0", "backward", "zero step", "adam", "sample", "matmul", "layer_norm", "attention", "cross_entropy", "loss", "memory", "settings", "save checkpoint"} <= names, r.stderr + str(names))
    check("an operation is within its step", all(s["ts"] <= o["ts"] and o["ts"] + o["dur"] <= s["ts"] + s["dur"] + 0.002 for s in all_ if s["name"] == "step 3" for o in all_ if o["name"] == "adam"
                                                 and s["ts"] <= o["ts"] < s["ts"] + s["dur"]), "")
    r = run("lockstep", "report", d / "run", "--json", "--svg", d / "t.svg")
    figures = json.loads(r.stdout)
    check("report", r.returncode == 0 and figures["steps"] == 6 and figures["loss"] > 0 and figures["warnings"] == [], r.stdout + r.stderr)
    check("its curves, its evaluation, its program", {"loss", "lr", "grad_norm"} <= set(figures["metrics"]) and figures["evaluations"]["count"] == 1 and 0 < figures["evaluations"]["seconds"] and figures["program"] == "gpt", r.stdout)
    parameters = figures["memory"]["parameter"]
    check("memory is the formula's", parameters["measured"] == parameters["formula"] and figures["memory"]["optimizer"]["measured"] == figures["memory"]["optimizer"]["formula"]
          and figures["memory"]["gradient"]["measured"] == figures["memory"]["gradient"]["formula"], r.stdout)
    page = Page(d / "run/report.html")
    check("the page is whole and alone", not page.outside and not page.open and all(w in page.words for w in ("Loss", "Rates and norms", "1 evaluation took", "Timeline", "Memory", "Operations", "Settings", "matmul")), str(page.outside) + str(page.open))
    check("its timeline is a picture", (d / "t.svg").read_text().startswith("<svg xmlns"), "")

    # Ranks in threads and in processes.
    for name, start, more in (("threads", [], ["--ranks", 2]), ("processes", ["lockstep", "run", "-q", "-n", 2, "--"], [])):
        command = [*start, *([APPS / "gpt", *gpt[1:]] if start else gpt), *more]
        works(f"2 ranks as {name}", [*command, "--steps", 5, "--trace", d / name], lambda r: sorted(p.name for p in (d / name).iterdir()) == ["rank-0.json", "rank-1.json"])
        r = run("lockstep", "trace", "merge", d / name)
        merged = records(d / name / "trace.json")
        check(f"{name}: merged", r.returncode == 0 and {record["pid"] for record in merged} == {0, 1} and "ui.perfetto.dev" in r.stdout, r.stdout + r.stderr)
        for path in sorted((d / name).iterdir()):
            check(f"{name}: {path.name} keeps the rules of its format", not broken_rules(records(path)), broken_rules(records(path))[:5])
        r = run("lockstep", "report", d / name, "--json")
        figures = json.loads(r.stdout)
        check(f"{name}: traffic is the formula's", abs(figures["sent"] / figures["sent_formula"] - 1) < 0.02, r.stdout)
        check(f"{name}: memory of a rank", abs(figures["memory"]["parameter"]["measured"] / figures["memory"]["parameter"]["formula"] - 1) < 0.01, r.stdout)
    for zero in (1, 2, 3):
        r = run(*wide, "--steps", 4, "--ranks", 2, "--plan", f"zero{zero}", "--accumulate", 2, "--trace", d / f"zero{zero}")
        figures = json.loads(run("lockstep", "report", d / f"zero{zero}", "--json").stdout)
        check(f"ZeRO {zero}: traffic is the formula's", r.returncode == 0 and abs(figures["sent"] / figures["sent_formula"] - 1) < 0.1, str(figures) + r.stderr)
        broken = broken_rules(records(d / f"zero{zero}/rank-0.json"))
        check(f"ZeRO {zero}: the file keeps the rules of its format", not broken, broken[:5])
    r = run(*gpt, "--steps", 5, "--ranks", 2, "--plan", "pp2", "--accumulate", 4, "--trace", d / "pp")
    figures = json.loads(run("lockstep", "report", d / "pp", "--json").stdout)
    check("a pipeline's slots", r.returncode == 0 and figures["pipeline"]["stages"] == 2 and figures["pipeline"]["micro_batches"] == 4 and abs(figures["pipeline"]["idle_formula"] - 0.2) < 1e-9
          and 0 < figures["pipeline"]["idle_measured"] < 1, str(figures))
    for app in ("mlp", "cnn"):
        r = run(app, "train", "--epochs", 1, "--samples", 300, "--json", "--trace", d / app)
        names = {record["name"] for record in records(d / app / "rank-0.json")}
        check(f"{app} --trace", r.returncode == 0 and {"step 0", "forward 0", "make batch", "next batch", "loss"} <= names, r.stderr + str(names))
    r = run("mlp", "train", "--samples", 256, "--steps", 3, "--batch", 16, "--ranks", 2, "--plan", "zero2", "--accumulate", 2, "--trace", d / "own")
    figures = json.loads(run("lockstep", "report", d / "own", "--json").stdout)
    check("a program of the Trainer: traffic is the formula's", r.returncode == 0 and abs(figures["sent"] / figures["sent_formula"] - 1) < 0.1, str(figures) + r.stderr)

    r = run("mlp", "train", "--samples", 256, "--steps", 4, "--eval-every", 2, "--out", d / "metrics")
    works("a run without a trace", ["lockstep", "report", d / "metrics", "--json"], lambda r: "test_accuracy" in json.loads(r.stdout)["metrics"])
    words = Page(d / "metrics/report.html").words
    check("its page has its metrics, and advises an option that mlp has", r.returncode == 0 and all(w in words for w in ("Metrics", "test_accuracy", "mlp", f"--trace {d / 'metrics'}/trace")), words)

    # Killed runs, missing ranks, invalid files.
    p = subprocess.Popen([str(w) for w in [APPS / "lockstep", "run", "-q", "-n", 2, "--", APPS / "gpt", *gpt[1:], "--steps", 100000, "--trace", d / "killed"]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = d / "killed/rank-1.json"
    for _ in range(600):
        if file.exists() and "step 20" in file.read_text():
            break
        time.sleep(0.05)
    pid = [record for record in records(file, full=False) if record["name"] == "trace"][0]["args"]["process"]
    os.kill(pid, signal.SIGKILL)
    p.wait(timeout=60)
    works("a killed run is reported", ["lockstep", "report", d / "killed", "--json"], lambda r: json.loads(r.stdout)["steps"] >= 20 and "the trace of rank 1 has no end" in r.stderr)
    works("and merged", ["lockstep", "trace", "merge", d / "killed", "--out", d / "killed.json"], lambda r: len(records(d / "killed.json")) > 100)
    (d / "pp/rank-1.json").unlink()
    works("a missing rank is said", ["lockstep", "report", d / "pp", "--json"], lambda r: "no trace of rank 1 (of 0 to 1)" in r.stderr and "pipeline" not in json.loads(r.stdout))
    (d / "empty").mkdir()
    refused("an empty folder", ["lockstep", "report", d / "empty"], "an empty folder", "--out", "--trace")
    refused("no folder", ["lockstep", "report", d / "none"], "which does not exist")
    refused("nothing to merge", ["lockstep", "trace", "merge", d / "empty"], "expected files rank-N.json")
    (d / "empty/rank-0.json").write_text('{"not": "ours"}')
    refused("a foreign file", ["lockstep", "report", d / "empty"], "rank-0.json: expected a trace that Lockstep wrote")
    refused("one file for several ranks", [*gpt, "--steps", 2, "--ranks", 2, "--trace", d / "t.json"], "expected a folder for the traces of 2 ranks")
    refused("a place that cannot be", [*gpt, "--steps", 2, "--trace", text], "[trace] cannot create the folder")
    refused("a limit that is none", [*gpt, "--trace", d / "x"], "LOCKSTEP_TRACE_MIB", code=2, LOCKSTEP_TRACE_MIB="0")
    shutil.rmtree(d / "run")

    # Predictions.
    step = ["lockstep", "simulate", "--model", "gpt:12x768x12", "--micro-batches", 8]
    given = ["--flops", "1e14", "--memory-bandwidth", "1e12"]
    r = run(*step, "--plan", "dp64+pp4+tp4+zero1", *given, "--json")
    p = json.loads(r.stdout)
    check("simulate a step", r.returncode == 0 and p["ranks"] == 1024 and abs(sum(t["seconds"] for t in p["terms"]) / p["step"] - 1) < 1e-9 and p["bound"] in {t["name"] for t in p["terms"]}, r.stdout + r.stderr)
    works("its table", [*step, "--plan", "dp64+pp4+tp4+zero1", *given, "--host-bandwidth", "300GB/s", "--dtype", "bf16", "--recompute"], lambda r: all(w in r.stdout for w in ("idle (bubble)", "bound by", "tokens/s", "tensor parallel", "within a host")))
    small = ["lockstep", "simulate", "--model", "gpt:2x32x2", "--vocab", 256, "--context", 32, "--micro-batch", 4]
    works("costs of this machine", [*small, "--plan", "dp2", "--ranks-per-host", 2, "--measure", "--json"], lambda r: "measured here" in json.loads(r.stdout)["costs"]["origin"] and json.loads(r.stdout)["step"] > 0)
    works("costs of a trace", [*small, "--plan", "dp2", "--measure", d / "threads", "--json"], lambda r: json.loads(r.stdout)["costs"]["origin"] == "trace of 2 ranks")
    refused("no costs", [*step, "--plan", "dp2"], "expected --flops, or --measure", "got neither", code=2)
    refused("a plan that is none", [*step, "--plan", "dp2,pp2", *given], "such as dp2+pp2+tp2+zero1", '"dp2,pp2"', code=2)
    refused("a plan of shared sequences", [*step, "--plan", "dp2+cp2", *given], "cp", "not modelled", "lockstep plan", code=2)
    refused("heads that do not divide", [*step, "--plan", "tp5", *given], "tp5 does not divide the 12 attention heads", code=2)
    # All commands count the same number of layers.
    config = '{"train_micro_batch_size_per_gpu": 1}'
    for args, code, *words in ((["lockstep", "simulate", "--model", "gpt:1x32x4", *given], 2, "7 stages need 7 layers, the model has 6"),
                               (["lockstep", "plan", "--config", config, "--model", "gpt:1x32x4"], 2, "7 stages need 7 layers, the model has 6"),
                               (["gpt", "train", "--text", text, "--model", "gpt:1x128x4", "--ranks", 7], 1, "7 stages need 7 layers, the model has 6")):
        refused(f"too many stages: {' '.join(args[:2])}", [*args, "--plan", "pp7"], *words, code=code)
    refused("both kinds of simulation", [*step, "--plan", "dp2", *given, "--ranks", 4], "--ranks is for a collective", code=2)
    refused("neither kind", ["lockstep", "simulate"], "simulate needs --ranks", code=2)
    refused("a folder without traces", [*small, "--plan", "dp2", "--measure", d / "none"], "found none", code=2)
    check("nothing is left", not left_behind(d), left_behind(d))

finish()
