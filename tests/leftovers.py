"""What tests of programs must not leave behind. Shared memory and sockets of ranks have no names: they end with their
processes.
"""
import os
import pathlib
import time


def processes_with(variable):
    """Other processes with this variable in their environment ("NAME=value"): {pid: command line}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            pass
    return {pid: line for pid, line in found.items() if line}  # no command line: it has ended


def left_behind(folder, seconds=20):
    """Processes whose TMPDIR is this folder, and temporary files of launchers and ranks, that remain after some time.
    """
    until = time.monotonic() + seconds
    while True:
        left = [f"process {pid}: {line}" for pid, line in processes_with(f"TMPDIR={folder}").items()]
        # The launcher intentionally keeps the folder of a job whose ranks wrote flight records.
        left += [f"file {path}" for path in pathlib.Path(folder).iterdir() if path.name.startswith("lockstep-") and not any(path.rglob("flight-*"))]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.02)
