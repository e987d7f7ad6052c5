"""For the tests of whole programs: how they are run, and counts of checks, of which those that fail are printed."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

APPS = pathlib.Path(sys.argv[1]).resolve() / "apps"  # of the build folder
OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # variables that a launcher around a test would hand on
RECOMPUTE = ["--set", "activation_checkpointing.enabled=true"]  # blocks run again in backward
passed = failed = 0
counting = threading.Lock()


def check(name, condition, shown=""):
    global passed, failed
    with counting:
        passed, failed = passed + bool(condition), failed + (not condition)
    if not condition:
        print(f"FAIL {name}\n{shown}", flush=True)


def run(program, *args, timeout=300, **variables):
    """Runs one of our programs to its end. Keywords in capitals are variables of its environment."""
    env = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    return subprocess.run([str(APPS / program), *map(str, args)], capture_output=True, text=True, errors="replace", timeout=timeout, env={**env, **variables})


def refused(name, args, *parts, code=1):
    r = run(*args)
    check(name, r.returncode == code and all(p in r.stderr for p in parts), f"exit {r.returncode}: {r.stderr}{r.stdout}")


def result(r):
    """What a program says with --json in its last line."""
    return json.loads(r.stdout.strip().splitlines()[-1])


def saved(folder):
    """Hashes of all tensors in the last checkpoint of a run, whichever ranks had what of them."""
    with tempfile.TemporaryDirectory() as merged:
        run("lockstep", "checkpoint", "merge", pathlib.Path(folder) / "checkpoints", pathlib.Path(merged) / "one")
        files = [f.read_bytes() for f in sorted(pathlib.Path(merged).rglob("*.safetensors"))]
    return [hashlib.sha256(f[8 + int.from_bytes(f[:8], "little"):]).hexdigest() for f in files]  # the header has the checkpoint's id


def finish():
    """The last line that tests/run_all.py counts, and the exit code."""
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
