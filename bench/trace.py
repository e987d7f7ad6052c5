#!/usr/bin/env python3
"""What --trace costs: CPU time of the same run with and without, alternating runs, the least of each. (One thread; CPU time says the same on a loaded machine.) Usage: bench/trace.py BUILD [OTHER_BUILD] [--rounds 7]

OTHER_BUILD (one without the hooks, say) is run without --trace in the same rounds.
"""
import argparse
import pathlib
import resource
import subprocess
import tempfile

SIZES = {"small operations": ["--model", "gpt:2x32x4", "--context", 32, "--batch", 2, "--steps", 1500], "gpt 4x128": ["--model", "gpt:4x128x4", "--context", 128, "--batch", 8, "--steps", 60]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("".join(chr(97 + i * i * 7 % 26) for i in range(100_000)))
        for name, size in SIZES.items():
            times = {}
            for round_ in range(o.rounds):
                kinds = {"off": (o.build, []), "on": (o.build, ["--trace", f"{folder}/t"])}
                if o.other:
                    kinds["other"] = (o.other, [])
                for kind, (build, more) in sorted(kinds.items(), reverse=round_ % 2 == 1):
                    command = [build / "apps/gpt", "train", "--text", text, "--eval-every", 1000000, "--validation", 0.05, "--threads", 1, "--json", *size, *more]
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, check=True)
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    times.setdefault(kind, []).append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            base, records = min(times["off"]), (pathlib.Path(folder) / "t/rank-0.json").read_text().count("\n")
            print(name, *(f"{kind}: {min(all_):.3f} s ({100 * (min(all_) / base - 1):+.1f} %)" for kind, all_ in sorted(times.items())),
                  f"a record: {1e9 * (min(times['on']) - base) / records:.0f} ns", sep="\n  ")


if __name__ == "__main__":
    main()
