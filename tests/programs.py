"""For tests of whole programs: runs them, and counts checks, of which it prints those that fail."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

APPS = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve() / "apps"  # in the build folder
# variables that a launcher around a test would pass on
OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
RECOMPUTE = ["--set", "activation_checkpointing.enabled=true"]  # recomputes blocks in backward
passed = failed = 0
counting = threading.Lock()


def check(name, condition, output=""):
    global passed, failed
    with counting:
        passed, failed = passed + bool(condition), failed + (not condition)
    if not condition:
        print(f"FAIL {name}\n{output}", flush=True)


def run(program, *args, timeout=300, cwd=None, **variables):
    """Runs one of our programs, or the one at an absolute path, to its end. Keyword arguments in capitals are environment variables."""
    env = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    return subprocess.run([str(APPS / program), *map(str, args)], capture_output=True, text=True, errors="replace", timeout=timeout, cwd=cwd, env={**env, **variables})


def works(name, args, that=lambda r: True, **options):
    """Counts a run of one of our programs as a check: it must end with 0, and that(run) must hold. Returns the run."""
    r = run(*args, **options)
    check(name, r.returncode == 0 and that(r), f"exit {r.returncode}: {r.stdout}{r.stderr}")
    return r


def disturbed(command, when, act, **variables):
    """Starts a command and calls act(process) when when() holds, or when it has ended: (exit code, stdout, stderr) at its end."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    while not when() and process.poll() is None:
        time.sleep(0.001)
    act(process)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@contextlib.contextmanager
def workplace(sentences=200):
    """A temporary folder, and a text in it. Launchers keep the folders of failed runs in it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * sentences)
        yield text.parent, text


def environment(**variables):
    """The environment without what launchers and users set for our programs, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"(PET_|LOCKSTEP_|OMP_|RANK$|WORLD_SIZE$|MASTER_)", name)}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def output_of(command, **options):
    """Runs any command; what it prints on both streams. An exit code other than 0 is an error that shows the output."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def changed(words, option, value):
    """The words of a command, with another value of an option."""
    return [value if before == option else word for before, word in zip([None, *words], words)]


def settle(condition, seconds=20):
    """Waits until the condition holds; False if it does not within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def attempt(step):
    """Counts a function as one check, which fails if it raises an error."""
    try:
        step()
    except RuntimeError as error:
        check(step.__name__, False, error)
    else:
        check(step.__name__, True)


def refused(name, args, *parts, code=1, **options):
    r = run(*args, **options)
    check(name, r.returncode == code and all(p in r.stderr for p in parts), f"exit {r.returncode}: {r.stderr}{r.stdout}")


def offers(program, *words):
    """True if this build's program has the last word, a command or an option of the command before it. Extensions have
    some."""
    return words[-1] in run(program, *words[:-1], "--help").stdout.split()


def began(folder, steps=3):
    """Whether a run in this folder has logged so many steps."""
    metrics = folder / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") >= steps


def result(r):
    """The last line that a program prints with --json."""
    return json.loads(r.stdout.strip().splitlines()[-1])


def saved(folder):
    """Hashes of all tensors in a run's last checkpoint, independent of the ranks that wrote them."""
    latest = pathlib.Path(folder) / "checkpoints/latest"
    if not latest.exists():
        return []
    at, held = latest.parent / latest.read_text().strip(), {}
    for path in at.glob("*.safetensors"):
        content = path.read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:begin]).items():
            if name != "__metadata__":
                held[path.name, name] = content[begin:][slice(*entry["data_offsets"])]
    tensors = json.loads((at / "manifest.json").read_text())["tensors"]
    return [(name, hashlib.sha256(b"".join(held[part["file"], part["name"]] for part in tensors[name]["parts"])).hexdigest()) for name in sorted(tensors)]


def finish():
    """Prints the last line, which tests/run_all.py reads; the exit code."""
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
