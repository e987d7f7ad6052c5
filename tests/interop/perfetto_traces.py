#!/usr/bin/env python3
"""Traces (`--trace DIR`) as Perfetto's trace_processor reads them: spans and counters of each rank, names, no data loss.

    perfetto_traces.py BUILD_FOLDER          ends with "N passed, N failed"

Skipped (exit code 77) without the package perfetto ($PYTHON names an interpreter that has it), or if it cannot start its program
trace_processor, which it downloads. TRACE_PROCESSOR names the program, then nothing is downloaded. tests/trace_command.py checks
the rules of the format without the package.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys

from checks import need

need("perfetto")
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from programs import check, finish, works, workplace  # noqa: E402

CONFIG = TraceProcessorConfig(bin_path=os.environ.get("TRACE_PROCESSOR"))
OF_A_PROCESS = "select pid, count(*) as n from {rows} join {tracks} on {rows}.track_id = {tracks}.id {threads} join process using (upid) group by pid"
QUERIES = {
    "spans": OF_A_PROCESS.format(rows="slice", tracks="thread_track", threads="join thread using (utid)"),
    "counters": OF_A_PROCESS.format(rows="counter", tracks="process_counter_track", threads=""),
}
LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def counted(path):
    """{"spans": {rank: number}, "counters": {rank: number of values}} of a file."""
    counts = {kind: collections.Counter() for kind in QUERIES}
    for record in json.loads(path.read_text()):
        if record["ph"] in "Xi":
            counts["spans"][record["pid"]] += 1
        elif record["ph"] == "C":
            counts["counters"][record["pid"]] += len(record["args"])
    return counts


def compare(path):
    with TraceProcessor(trace=str(path), config=CONFIG) as reader:
        for kind, expected in counted(path).items():
            found = {row.pid: row.n for row in reader.query(QUERIES[kind])}
            check(f"{path.parent.name}/{path.name}: {kind} of each rank", expected and found == expected, f"{found}, written: {expected}")
        names = {row.pid: row.name for row in reader.query("select pid, name from process where pid is not null")}
        ranks = sorted(counted(path)["spans"])
        check(f"{path.parent.name}/{path.name}: names of ranks", all(names.get(rank) == f"rank {rank}" for rank in ranks), names)
        lost = [(row.name, row.value) for row in reader.query(LOST)]
        check(f"{path.parent.name}/{path.name}: nothing is lost", not lost, lost)


try:
    TraceProcessor(config=CONFIG).close()
except (subprocess.CalledProcessError, OSError) as error:
    print(f"perfetto's trace_processor is not here and cannot be downloaded ({error}); set TRACE_PROCESSOR to it")
    sys.exit(77)

with workplace() as (d, text):
    gpt = ["gpt", "train", "--text", text, "--model", "gpt:2x32x2", "--context", 32, "--batch", 4, "--steps", 5, "--json"]
    for plan in ("dp2", "zero3", "pp2"):
        works(f"{plan}: trains", [*gpt, "--ranks", 2, "--plan", plan, "--accumulate", 2, "--trace", d / plan])
        works(f"{plan}: merged", ["lockstep", "trace", "merge", d / plan])
        for name in ("rank-0.json", "rank-1.json", "trace.json"):
            compare(d / plan / name)
finish()
