#!/usr/bin/env python3
"""Runs test_mpi under mpirun: the body shared by all process groups, then faults, whose messages are compared.

Prints "N passed, M failed"; exit code 77 (skipped) with a reason if there is no mpirun.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys

# (case, ranks, required part of the output; "": it must succeed)
CASES = [
    ("body", 1, ""),
    ("body", 3, ""),
    ("auto", 2, ""),
    ("count", 3, "rank 2 calls all_reduce f32 x 9 sum, tag w1"),
    ("dtype", 3, "rank 2 calls all_reduce i32 x 8 sum, tag w1"),
    ("gather", 3, "ranks disagree in group world, call 1 (gather f32 to rank 0)"),
    ("message", 3, "rank 1 calls send f32 x 8 to rank 2, tag a; rank 2 calls receive f32 x 9 from rank 1, tag a"),
    ("throw", 3, "[rank 1] bad sample 17"),
    ("left", 3, "rank 1 has left"),
    ("receive", 3, "deadlock: rank 0 waits to receive from rank 1 (tag a), rank 1 waits to receive from rank 0 (tag b)"),
    ("algorithm", 2, "expected algorithm automatic, since MPI chooses its own, got ring"),
    ("kill", 3, ""),
    ("url", 1, "[init] expected env:// with backend mpi, where mpirun assigns the ranks, got tcp://127.0.0.1:1"),
    ("rendezvous", 1, "[init] expected a URL with backend mpi, got a rendezvous"),
    ("unknown", 1, '[init] expected backend auto, native, nccl, mpi, got "gloo"'),
]


def kill_session(session):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended already


def main():
    mpirun = shutil.which("mpirun")
    if not mpirun:
        print("skipped: mpirun is not here")
        return 77
    env = dict(os.environ, LOCKSTEP_HEARTBEAT="1", LOCKSTEP_TIMEOUT="60", OMP_NUM_THREADS="1")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    passed = failed = 0
    for case, ranks, said in CASES:
        command = [mpirun, *root, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks), sys.argv[1], case]
        should_fail = bool(said) or case == "kill"
        # mpirun of Open MPI 4.1 sometimes hangs after it announces that it ends the job.
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            output, code = process.communicate(timeout=60 if should_fail else 300)[0], process.returncode
        except subprocess.TimeoutExpired:
            kill_session(process.pid)  # mpirun and its ranks, which are in process groups of their own
            output = process.communicate()[0]
            code = 1 if should_fail and "mpirun" in output and "exited" in output else -1
        good = said in output and code != -1 and (code != 0) == should_fail
        passed, failed = passed + good, failed + (not good)
        if not good:
            print(f"{case} on {ranks} ranks ended with {code}, expected {'a failure that says: ' + said if should_fail else 'success'}\n{output}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
