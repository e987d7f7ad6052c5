"""What tests of programs may not leave behind. Shared memory and sockets of ranks have no names: they end with the processes."""
import os
import pathlib
import time


def processes_with(variable):
    """Processes, besides this one, that were started with this in their environment ("NAME=value"): {pid: command line}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            pass
    return {pid: line for pid, line in found.items() if line}  # else it has ended


def left_behind(folder, seconds=20):
    """After a while: processes whose TMPDIR is this folder, and what launchers and ranks keep there for a while only."""
    until = time.monotonic() + seconds
    while True:
        left = [f"process {pid}: {line}" for pid, line in processes_with(f"TMPDIR={folder}").items()]
        # The launcher keeps the folder of a job whose ranks wrote flight records, and says so.
        left += [f"file {path}" for path in pathlib.Path(folder).iterdir() if path.name.startswith("lockstep-") and not any(path.rglob("flight-*"))]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.02)
