#!/usr/bin/env python3
"""The table of docs/collectives.md: what it says of steps, bytes and times is what the schedules take.

tests/formulas.py BUILD_FOLDER          ends with "N passed, N failed"

Formulas are read from the page and calculated for 2 to 9 ranks, and for hosts of ranks. A cell may end with ", ... a power of two"
or ", ... powers of two": then it holds for such numbers only.
"""
import math
import pathlib
import re

from programs import check, finish, result, works

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/collectives.md"
ALGORITHMS = ("server", "ring", "direct", "tree", "halving_doubling", "one_shot", "hierarchical")
S, ALPHA, BETA, NEAR_ALPHA, NEAR_BETA = 2520 * 4 * 16, 5e-6, 25e9, 1e-6, 100e9  # S: of elements that 1 to 10 ranks share evenly
NETWORK = ["--bytes", S, "--latency", "5us", "--bandwidth", "25GB/s"]
HOSTS = [(m, k) for m in (1, 2, 3, 4) for k in (1, 2, 3, 4) if m * k in (2, 3, 4, 6, 8, 9)]


def calculate(formula, **numbers):
    """2(n-1)/n·S, 2^⌈log₂n⌉ and the like."""
    text = re.sub(r"⌈log₂(\w)⌉", r"ceil(lb(\1))", formula)
    text = re.sub(r"log₂(\w)", r"lb(\1)", text)
    for theirs, ours in (("·", "*"), ("^", "**"), ("α'", "near_alpha"), ("β'", "near_beta"), ("α", "alpha"), ("β", "beta"), ("mk", "m*k")):
        text = text.replace(theirs, ours)
    text = re.sub(r"(\d)\(", r"\1*(", text)
    return eval(text, {"ceil": math.ceil, "lb": math.log2, "S": S, "alpha": ALPHA, "beta": BETA, "near_alpha": NEAR_ALPHA, "near_beta": NEAR_BETA, **numbers})


def holds_for(cell, **numbers):
    """(formula, whether it is for these numbers)"""
    formula, _, condition = cell.partition(", ")
    check(f"'{cell}' has a known condition", re.fullmatch(r"|\w a power of two|\w and \w powers of two", condition), condition)
    return formula, not condition or all(numbers[name] & (numbers[name] - 1) == 0 for name in re.findall(r"\b[nmk]\b", condition))


rows = {}
for line in PAGE.read_text().partition("## Which is best?")[2].partition("\n## ")[0].splitlines():
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if line.startswith("|") and len(cells) == 4 and cells[0].split(",")[0] in ALGORITHMS:
        rows[cells[0].split(",")[0]] = cells[1:]
check("the table has a row for every algorithm", list(rows) == list(ALGORITHMS), list(rows))

for algorithm, cells in rows.items():
    for m, k in HOSTS if algorithm == "hierarchical" else [(n, 1) for n in range(2, 10)]:
        sizes = {"n": m * k, **({"m": m, "k": k} if algorithm == "hierarchical" else {})}
        hosts = ["--hosts", f"{m}x{k}", "--host-latency", "1us", "--host-bandwidth", "100GB/s"] if algorithm == "hierarchical" else []
        asked = works(f"{algorithm} {sizes} is simulated", ["lockstep", "simulate", algorithm, "--ranks", m * k, *NETWORK, *hosts, "--json"])
        found = result(asked)["asked"]
        for what, cell, measured in zip(("steps", "bytes", "time"), cells, (found["steps"], found["sent_max"], found["seconds"])):
            formula, holds = holds_for(cell, **sizes)
            if holds:
                expected = calculate(formula, **sizes)
                check(f"{algorithm} {sizes}: {what} {formula} = {expected:g}", abs(measured - expected) <= 1e-6 * expected, measured)
finish()
