#!/usr/bin/env python3
"""`lockstep run` as a user runs it: environment, output, failures, signals, restarts, hosts behind a stand-in for ssh.

commands.py BUILD_FOLDER          ends with "N passed, N failed"

Ranks are shell scripts. Each carries a mark in its environment, by which leftover processes are found.
"""
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests"))
from programs import check, finish, settle  # noqa: E402

LOCKSTEP = str(pathlib.Path(sys.argv[1]).resolve() / "apps/lockstep")
LIMIT = 60  # seconds; far longer than anything here takes
MARK = "LAUNCHER_TEST_MARK"
test = threading.local()  # test.mark: the mark of the process that this thread started last
# A background job of a shell starts with these signals ignored, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not re.match(r"(PET_|LOCKSTEP_|OMP_|RANK$|WORLD_SIZE$|MASTER_)", k)}
    return {**kept, MARK: test.mark, **{k: str(v) for k, v in more.items()}}


def begin(*args, stdin=subprocess.DEVNULL, env=None, **kw):
    test.mark = uuid.uuid4().hex
    return subprocess.Popen([LOCKSTEP, "run", *map(str, args)], stdin=stdin, stdout=kw.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, env=environment(**(env or {})), **kw)


def end(name, process, data=None):
    """Waits for a process and checks that nothing is left behind. The result has returncode, stdout, stderr."""
    try:
        out, err = process.communicate(data, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        check(f"{name}: ends", False, (out or b"") + err)
    left = settle(lambda: not leftovers())
    check(f"{name}: nothing is left", left, leftovers())
    return subprocess.CompletedProcess(process.args, process.returncode, (out or b"").decode(errors="replace"), err.decode(errors="replace"))


def run(name, *args, data=None, **kw):
    return end(name, begin(*args, stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL, **kw), data)


def expect(name, r, code, *parts, absent=()):
    text = r.stdout + r.stderr
    check(name, r.returncode == code and all(p in text for p in parts) and not any(p in text for p in absent), f"exit {r.returncode}\n{r.stdout}---\n{r.stderr}")
    return r


def marked():
    """The processes of the current test: {pid: command line}."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if f"{MARK}={test.mark}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return {pid: line for pid, line in found.items() if line}


def leftovers():
    return {pid: line for pid, line in marked().items() if pid != os.getpid()}


def state(pid):
    """The state letter of ps: T for stopped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def side_by_side(case, rows):
    """Calls case(*row) for all rows in parallel: launchers mostly wait for ranks, and ranks for signals."""
    with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:
        list(pool.map(lambda row: case(*row), rows))


def lines(text):
    return sorted(text.splitlines())


with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    os.environ["TMPDIR"] = folder
    temporary = lambda: [p.name for p in d.iterdir() if p.name.startswith("lockstep-") or p.name.endswith(".lockstep")]

    def remove_temporary():
        """Removes what killed launchers could not, except flight records."""
        for left in map(d.joinpath, temporary()):
            if left.is_dir() and not any(left.rglob("flight-*")):
                shutil.rmtree(left)


    # Environment.
    names = ("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK ROLE_WORLD_SIZE CROSS_RANK CROSS_SIZE LOCAL_SIZE MASTER_ADDR MASTER_PORT "
             "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID LOCKSTEP_JOB LOCKSTEP_TOKEN LOCKSTEP_FLIGHT_DIR LOCKSTEP_ERROR_FILE OMP_NUM_THREADS").split()
    show = "; ".join(f"echo {n}=${n}" for n in names)

    def variables(stdout):
        ranks = {}
        for line in stdout.splitlines():
            m = re.fullmatch(r"\[rank (\d+)\] (\w+)=(.*)", line)
            ranks.setdefault(int(m[1]), {})[m[2]] = m[3]
        return ranks

    r = run("environment", "-n", 3, "--max-restarts", 2, "--rdzv-id", "job7", "--", "sh", "-c", show)
    ranks = variables(r.stdout)
    check("three ranks", sorted(ranks) == [0, 1, 2], r.stdout + r.stderr)
    for k, v in ranks.items():
        want = dict(RANK=k, LOCAL_RANK=k, ROLE_RANK=k, WORLD_SIZE=3, LOCAL_WORLD_SIZE=3, ROLE_WORLD_SIZE=3, LOCAL_SIZE=3, GROUP_RANK=0, CROSS_RANK=0, CROSS_SIZE=1, MASTER_ADDR="127.0.0.1",
                    TORCHELASTIC_RESTART_COUNT=0, TORCHELASTIC_MAX_RESTARTS=2, TORCHELASTIC_RUN_ID="job7", LOCKSTEP_JOB="job7", OMP_NUM_THREADS=max(1, len(os.sched_getaffinity(0)) // 3))
        check(f"variables of rank {k}", all(v[n] == str(w) for n, w in want.items()) and v["LOCKSTEP_ERROR_FILE"].endswith(f"/{k}/error.json"), v)
    check("one port and token", len({(v["MASTER_PORT"], v["LOCKSTEP_TOKEN"]) for v in ranks.values()}) == 1 and re.fullmatch("[0-9a-f]{64}", ranks[0]["LOCKSTEP_TOKEN"]) is not None)
    again = variables(run("environment again", "-n", 3, "--", "sh", "-c", show).stdout)
    check("a token of its own for each run", again[0]["LOCKSTEP_TOKEN"] != ranks[0]["LOCKSTEP_TOKEN"])
    r = run("threads", "-n", 2, "sh", "-c", "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": 3})
    check("OMP_NUM_THREADS of the user stays", lines(r.stdout) == ["[rank 0] 3", "[rank 1] 3"] and "OMP_NUM_THREADS" not in r.stderr, r.stdout + r.stderr)
    check("threads are said once", run("notice", "-n", 2, "true").stderr.count("OMP_NUM_THREADS") == 1)
    check("quiet", run("quiet", "-q", "-n", 2, "true").stderr == "")

    # Command line.
    check("without --, arguments of the program are its own", run("own", "-n", 1, "sh", "-c", 'echo "$@"', "x", "--help", "-n", "9", "--", "a b").stdout == "--help -n 9 -- a b\n")
    check("underscores and =", lines(run("names", "--nproc_per_node=2", "--max_restarts", 0, "--standalone", "echo", "x").stdout) == ["[rank 0] x", "[rank 1] x"])
    check("PET_NPROC_PER_NODE", lines(run("PET", "echo", "x", env={"PET_NPROC_PER_NODE": 2}).stdout) == ["[rank 0] x", "[rank 1] x"])
    cores = len(os.sched_getaffinity(0))
    check("auto", len(run("auto", "--nproc", "auto", "echo", "x").stdout.splitlines()) == cores)
    expect("no effect, and says so", run("idle", "--monitor-interval", "0.1", "--start-method=spawn", "--no-python", "true"), 0, "--monitor-interval has no effect", "--start-method has no effect")
    used = socket.socket()
    used.bind(("127.0.0.1", 0))
    used.listen()
    port = used.getsockname()[1]
    words = lambda text: text.split()
    for name, args, code, parts in (
        ("unknown option", words("--nprocs 2 true"), 2, ["--nprocs", "did you mean --nproc?"]),
        ("no program", ["-n", 2], 2, ["expected a program"]),
        ("missing program", ["nosuch-program"], 1, ["no program 'nosuch-program' in PATH"]),
        ("a folder", [d], 1, ["it is a folder"]),
        ("a path that is not there", [d / "none"], 1, ["cannot run", "No such file"]),
        ("word for a number", words("-n two true"), 2, ["--nproc to be a number, auto or cpu, got 'two'"]),
        ("no ranks", words("-n 0 true"), 2, ["1 or more"]),
        ("gpu", words("-n gpu true"), 2, ["cannot count GPUs"]),
        ("module", words("-m x true"), 2, ["python3 -m MODULE"]),
        ("elastic nodes", words("--nnodes 1:4 true"), 2, ["cannot come and go"]),
        ("port in use", ["--master-port", port, "true"], 1, [f"port {port} is used"]),
        ("foreign address", words("--master-addr 192.0.2.1 true"), 1, ["not an address of this machine"]),
        ("standalone with nodes", words("--standalone --nnodes 2 true"), 2, ["--standalone is for one node"]),
        ("nodes without a number", words("--nnodes 2 --master-addr 127.0.0.1 true"), 2, ["--node-rank"]),
        ("node out of range", words("--nnodes 2 --node-rank 2 --master-addr 127.0.0.1 true"), 2, ["from 0 to 1"]),
        ("nodes without an address", words("--nnodes 2 --node-rank 0 true"), 2, ["--master-addr"]),
        ("nodes without a secret", words("--nnodes 2 --node-rank 0 --master-addr 127.0.0.1 true"), 2, ["token_file"]),
        ("two addresses", words("--master-addr a --rdzv-endpoint b:1 true"), 2, ["one address"]),
        ("etcd", words("--rdzv-backend etcd true"), 2, ["c10d or static", "'etcd'"]),
        ("rendezvous setting", words("--rdzv-conf foo=1 true"), 2, ["'foo=1'"]),
        ("pdsh", words("--launcher pdsh true"), 2, ["--launcher ssh", "mpirun"]),
        ("redirects", words("-n 2 --redirects 4 true"), 2, ["--redirects", "'4'"]),
        ("tee of a rank that is not there", words("-n 2 --tee 2:1 true"), 2, ["--tee names local rank 2"]),
        ("prefix", ["--log-line-prefix-template", "${host} ", "true"], 2, ["'${host}'"]),
        ("filter", words("-n 2 --local-ranks-filter 0,5 true"), 2, ["local rank 5"]),
        ("more ranks than cores to bind", ["-n", cores + 1, "--bind-cores-to-rank", "true"], 1, ["at least one core a rank"]),
        ("core that is not there", words("--bind-cores-to-rank --bind-core-list 4000 true"), 1, ["core 4000"]),
        ("core list alone", words("--bind-core-list 0 true"), 2, ["--bind-cores-to-rank"]),
        ("hostfile that is not there", ["-H", d / "none", "true"], 2, ["cannot read the hostfile", "No such file"]),
        ("slots", words("--num-gpus 100000 true"), 2, ["--num-gpus", "4096"]),
        ("include and num-gpus", words("-i localhost --num-gpus 1 true"), 2, ["got both kinds"]),
        ("include and exclude", words("-i localhost -e localhost true"), 2, ["got both"]),
        ("agent by hand", words("--agent true"), 1, ["for launchers only"]),
    ):
        expect(name, run(name, *args), code, *parts, absent=["rank 0 ended"])
    for many in (["--num_gpus", cores + 2], [f"--num_gpus={cores + 2}"], ["--num-accelerators", cores + 2, "--num_nodes", 1]):
        r = run("DeepSpeed's number of ranks", *many, "sh", "-c", "echo of $WORLD_SIZE")
        check(f"{many} without a hostfile", r.returncode == 0 and r.stdout.count(f"of {cores + 2}\n") == cores + 2, r.stdout + r.stderr)
    used.close()

    # Output.
    r = run("streams", "-n", 2, "sh", "-c", "echo out; echo err >&2")
    check("stdout and stderr stay apart", lines(r.stdout) == ["[rank 0] out", "[rank 1] out"] and "[rank 1] err" in r.stderr and "out" not in r.stderr, r.stdout + r.stderr)
    process = begin("-n", 1, "sh", "-c", r"printf 'a\000\377\r\n\nlast'; printf 'e' >&2")
    out, err = process.communicate(timeout=LIMIT)
    check("one rank: bytes as they are", (out, err) == (b"a\0\xff\r\n\nlast", b"e"), (out, err))
    r = run("last line", "-n", 2, "printf", r"one\ntwo")
    check("a last line without an end", lines(r.stdout) == ["[rank 0] one", "[rank 0] two", "[rank 1] one", "[rank 1] two"], r.stdout)
    script = "import os,sys\nfor i in range(40): sys.stdout.write(os.environ['RANK'] * (i * 997) + 'e\\n')\nsys.stdout.write('z' * 3000000 + '\\n')"
    r = run("long lines", "-n", 3, sys.executable, "-c", script)
    full = [re.fullmatch(r"\[rank (\d)\] (\1*e|z*)", line) for line in r.stdout.splitlines()]
    check("long lines are whole", all(full) and len(full) == 3 * (40 + 3) and sum(line.count("z") for line in r.stdout.splitlines()) == 9000000, len(full))
    r = run("template", "-n", 2, "--role", "w", "--log-line-prefix-template", "[${role_name}${rank}/${local_rank}]:", "--local-ranks-filter", "1", "echo", "x")
    check("template and filter", r.stdout == "[w1/1]:x\n", r.stdout)
    check("input goes to rank 0", lines(run("input", "-n", 2, "cat", data=b"abc\n").stdout) == ["[rank 0] abc"])
    log = lambda job, *rest: (d / "logs" / job / "attempt_0").joinpath(*map(str, rest))
    r = run("logs", "-n", 2, "--log-dir", d / "logs", "--rdzv-id", "a", "sh", "-c", "echo out$RANK; echo err$RANK >&2; echo $LOCKSTEP_FLIGHT_DIR")
    check("log-dir: files and console", log("a", 1, "stdout.log").read_text() == f"out1\n{log('a')}\n" and log("a", 0, "stderr.log").read_text() == "err0\n" and "[rank 1] out1" in r.stdout, r.stdout)
    run("logs again", "-n", 1, "--log-dir", d / "logs", "--rdzv-id", "a", "true")
    check("a second run does not write over the first", (d / "logs/a-2").is_dir() and log("a", 1, "stdout.log").read_text().startswith("out1"))
    r = run("redirects", "-n", 3, "--log-dir", d / "logs", "--rdzv-id", "b", "-r", "0:1,1:3", "-t", "2:2", "sh", "-c", "echo out; echo err >&2")
    check("redirects and tee", lines(r.stdout) == ["[rank 2] out"] and "[rank 0] err" in r.stderr and "[rank 1] err" not in r.stderr and "[rank 2] err" in r.stderr, r.stdout + r.stderr)
    there = {(k, s) for k in range(3) for s in ("stdout", "stderr") if log("b", k, s + ".log").exists()}
    check("only files that were asked for", there == {(0, "stdout"), (1, "stdout"), (1, "stderr"), (2, "stderr")}, there)
    run("each rank log", "-n", 2, "--enable-each-rank-log", d / "logs", "--rdzv-id", "c", "echo", "x")
    check("--enable-each-rank-log", log("c", 1, "stdout.log").read_text() == "x\n")
    process = begin("-n", 2, "sh", "-c", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyy; done")
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    expect("nobody reads", end("nobody reads", process), 128 + signal.SIGPIPE, "the reader of standard output has closed it")
    process = begin("-n", 2, "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' 'x'; echo; exit 3")
    time.sleep(0.5)  # by now the pipe is full
    r = expect("slow reader", end("slow reader", process), 3)
    check("a slow reader gets everything", r.stdout.count("x") >= 5000000, r.stdout.count("x"))

    # On a terminal.
    def on_terminal(name, *args):
        test.mark = uuid.uuid4().hex
        ours, theirs = pty.openpty()
        process = subprocess.Popen([LOCKSTEP, "run", *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), start_new_session=True)
        os.close(theirs)
        got = b""
        try:
            while more := os.read(ours, 65536):
                got += more
        except OSError:  # the last process with the terminal has ended
            pass
        process.wait(LIMIT)
        os.close(ours)
        check(f"{name}: nothing is left", settle(lambda: not leftovers()), leftovers())
        return got.decode(errors="replace")

    bar = r"if [ $RANK = 0 ]; then test $LOCKSTEP_TERMINAL; for i in 1 2 3; do printf '\r\033[Kbar %d' $i >&2; sleep 0.05; done; printf '\r\033[K' >&2; echo done; else echo other; fi"
    printed = on_terminal("progress", "-q", "-n", 2, "sh", "-c", bar)
    check("a progress bar on a terminal", all(f"\r[rank 0] \033[Kbar {i}" in printed for i in (1, 2, 3)) and re.search(r"(^|[\n\r]|\033\[K)\[rank 1\] other\r\n", printed) and "[rank 0] done" in printed, repr(printed))
    check("one rank on a terminal", on_terminal("one on a terminal", "-n", 1, "sh", "-c", r"printf 'x\ry\n'") == "x\ry\r\n")

    # Failures.
    def fails(name, code, parts, *args):
        expect(name, run(name, *args), code, *parts)

    torch = json.dumps({"message": {"message": "RuntimeError: torn", "extraInfo": {}}})
    blame = 'echo "[rank 1] no space" > $LOCKSTEP_ERROR_FILE; if [ $RANK = 1 ]; then sleep 0.2; exit 5; fi; exit 6'
    side_by_side(fails, (
        ("signal", 137, ["rank 1 was killed by SIGKILL (signal 9)"], "-n", 2, "sh", "-c", "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 1000"),
        ("others that fail later are not the cause", 3, ["rank 1 ended with exit code 3", "then rank 0 ended with exit code 4"], "-n", 3, "sh", "-c", "if [ $RANK = 1 ]; then exit 3; fi; sleep 0.3; exit 4"),
        ("stubborn", 3, ["rank 1 ended", "stopped with it: rank 0"], "--stop-timeout", 0.5, "-n", 2, "sh", "-c", "if [ $RANK = 1 ]; then exit 3; fi; trap '' TERM; while :; do sleep 0.1; done"),
        ("stopped", 3, ["stopped with it: rank 0"], "--stop-timeout", 0.5, "-n", 2, "sh", "-c", "if [ $RANK = 1 ]; then sleep 0.2; exit 3; fi; trap '' TERM; kill -STOP $$; sleep 1000"),
        ("error file", 1, ["\n  error: loss is nan in step 3\n"], "-n", 2, "sh", "-c", 'if [ $RANK = 1 ]; then echo "loss is nan in step 3" > $LOCKSTEP_ERROR_FILE; exit 1; fi; sleep 1000'),
        ("error file of torch", 1, ["error: RuntimeError: torn"], "-n", 1, "sh", "-c", f"echo '{torch}' > $TORCHELASTIC_ERROR_FILE; exit 1"),
        ("an error of several lines", 1, ["\n  error: 2 problems\n  |   a\n  |   b\n"], "-n", 2, "sh", "-c", r'printf "2 problems\n  a\n  b\n" > $LOCKSTEP_ERROR_FILE; exit 1'),
        ("the error of a script that goes on", 0, ["rank 1: error: passing"], "-n", 2, "sh", "-c", "if [ $RANK = 1 ]; then echo passing > $LOCKSTEP_ERROR_FILE; fi"),
        ("what others say of a killed rank", 137, ["rank 1 was killed", "error: rank 1 (pid 7 on h) died"], "-n", 2, "sh", "-c", 'if [ $RANK = 1 ]; then kill -9 $$; fi; echo "rank 1 (pid 7 on h) died" > $LOCKSTEP_ERROR_FILE; exit 1'),
        ("the rank that all errors name", 5, ["rank 1 ended with exit code 5", "then rank 0 ended with exit code 6"], "-n", 2, "sh", "-c", blame),
    ))
    start = time.monotonic()
    fails("the first failure is reported", 7, ["rank 2 ended with exit code 7", "the reason", "stopped with it: rank 0, rank 1, rank 3", f"on {socket.gethostname()}"], "-n", 4, "sh", "-c",
                    'if [ $RANK = 2 ]; then echo "the reason" >&2; exit 7; fi; sleep 1000')
    check("the rest end soon", time.monotonic() - start < 5, time.monotonic() - start)
    (d / "plain").write_bytes(b"\0\1\2")
    expect("a file that is not executable", run("not executable", "-n", 2, d / "plain"), 1, "it is not executable (chmod +x)")
    (d / "plain").chmod(0o755)
    expect("no program format", run("format", "-n", 2, d / "plain"), 1, "could not run", "#!/usr/bin/env python3")
    r = run("records", "-n", 2, "sh", "-c", "echo {} > $LOCKSTEP_FLIGHT_DIR/flight-$RANK.json; exit 1")
    kept = re.search(r"flight records: lockstep flight (\S+)", r.stderr)
    check("flight records are kept and named", kept and sorted(p.name for p in pathlib.Path(kept[1]).glob("flight*")) == ["flight-0.json", "flight-1.json"], r.stderr)
    if kept:
        shutil.rmtree(pathlib.Path(kept[1]).parent)
    check("no temporary files are left", temporary() == [], temporary())

    # Processes that ranks leave behind, and launchers that are killed.
    litter = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'setsid sleep 1000 & sleep 1000' &) ; echo ready; "
    expect("leftovers of a good run", run("litter", "-n", 2, "sh", "-c", litter + "sleep 0.3"), 0, "ended a process that a rank had left behind: sleep")
    expect("leftovers of a bad run", run("bad litter", "-n", 2, "sh", "-c", litter + "exit 3"), 3)

    def ready(process, ranks):
        """Reads until every rank has printed "ready"."""
        received = b""
        while received.count(b"ready") < ranks and (more := os.read(process.stdout.fileno(), 4096)):
            received += more
        return received.count(b"ready") >= ranks

    def supervisor_of(process):
        return int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    # The launcher does not know which rank got a signal: a rank's exit code says that the job was asked to stop.
    said = run("asked to stop", "-n", 2, "--max-restarts", 3, "sh", "-c", "test $RANK = 1 || sleep 0.2; exit 143")
    expect("46: ranks that stop", said, 143, "rank 1 ended with exit code 143, which says that SIGTERM stopped the job: the other rank has 30 s to end too", absent=["rank 1 ended after", "starting all ranks again"])

    for victim in ("launcher", "supervisor"):
        process = begin("-n", 3, "sh", "-c", "trap '' TERM HUP INT; " + litter + "while :; do sleep 1; done")
        check(f"kill -9 {victim}: starts", ready(process, 3))
        start = time.monotonic()
        os.kill(process.pid if victim == "launcher" else supervisor_of(process), signal.SIGKILL)
        gone = settle(lambda: not leftovers())
        check(f"47: kill -9 {victim}: all is gone within 2 s", gone and time.monotonic() - start < 2, (time.monotonic() - start, leftovers()))
        r = end(f"kill -9 {victim}", process)
        if victim == "supervisor":
            expect("a killed supervisor is reported", r, 137, "was killed by SIGKILL", "its ranks were ended")
    remove_temporary()

    # Both the launcher and its supervisor are killed: the kernel ends the ranks.
    process = begin("-n", 3, "sh", "-c", "trap '' TERM HUP INT; echo ready; exec sleep 1000")
    check("kill -9 both: starts", ready(process, 3))
    both = [supervisor_of(process), process.pid]
    for one in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            os.kill(pid, one)
    check("kill -9 of launcher and supervisor: no rank is left", settle(lambda: not leftovers(), 5), leftovers())
    end("kill -9 both", process)
    remove_temporary()

    # If nobody reads their output, ranks block until the job is ended.
    def unread(name, script, code):
        process = begin("-n", 2, "sh", "-c", script)
        waiting = lambda: sum(struct.unpack("i", fcntl.ioctl(stream, termios.FIONREAD, b"    "))[0] for stream in (process.stdout, process.stderr))
        check(f"{name}, unread: starts", settle(lambda: waiting() > 20000), waiting())
        time.sleep(0.5)  # by now the launcher's buffer is full, too
        process.send_signal(signal.SIGTERM)
        try:
            got = process.wait(5)
        except subprocess.TimeoutExpired:
            got = "still there"
        check(f"{name}, unread: SIGTERM ends it within 5 s", got == code, got)
        end(f"{name}, unread", process)

    side_by_side(unread, (
        ("ranks that SIGTERM kills", "exec yes 0123456789012345678901234567890123456789", 143),
        ("ranks that end in order", f"trap 'exit 0' TERM; while :; do echo {'x' * 5000}; done", 0),
        ("ranks that complain", "exec yes 0123456789012345678901234567890123456789 | tee /dev/stderr", 143),
    ))

    # Signals.
    good = "trap 'echo saved; exit 0' INT TERM HUP; echo ready; while :; do sleep 0.05; done"
    deaf = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done"
    plain = "echo ready; exec sleep 1000"

    def signalled(name, script, signals, code, parts):
        process = begin("--grace", 0.5 if name == "grace is over" else 30, "--max-restarts", 3, "-n", 2, "sh", "-c", script)
        check(f"{name}: starts", ready(process, 2))
        start = time.monotonic()
        for one in signals:
            process.send_signal(one)
            time.sleep(0.3)
        expect(f"46: {name}", end(name, process), code, *parts, absent=["starting all ranks again"])
        check(f"46: {name}: at once", time.monotonic() - start < 5, time.monotonic() - start)

    side_by_side(signalled, (
        ("Ctrl-C", good, [signal.SIGINT], 0, ["saved", "SIGINT: passed on to 2 processes"]),
        ("SIGTERM", good, [signal.SIGTERM], 0, ["saved"]),
        ("SIGHUP", good, [signal.SIGHUP], 0, ["saved"]),
        ("Ctrl-C ends", plain, [signal.SIGINT], 130, []),
        ("SIGTERM ends", plain, [signal.SIGTERM], 143, []),
        ("Ctrl-C twice", deaf, [signal.SIGINT, signal.SIGINT], 130, ["SIGINT again: killing"]),
        ("SIGTERM twice", deaf, [signal.SIGTERM, signal.SIGTERM], 143, ["SIGTERM again: killing"]),
        ("grace is over", deaf, [signal.SIGINT], 130, []),
        ("USR1 is passed on", "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done", [signal.SIGUSR1], 0, ["usr1"]),
    ))
    process = begin("-n", 2, "sh", "-c", good)
    ready(process, 2)
    process.send_signal(signal.SIGTSTP)
    # more than 2 while a rank forks
    states = lambda: [state(pid) for pid, line in marked().items() if re.match(r"\S*/sh -c trap", line)]
    # D: a fork whose child is stopped
    check("Ctrl-Z stops the ranks too", settle(lambda: state(process.pid) == "T" and len(s := states()) >= 2 and set(s) <= {"T", "D"}), states())
    process.send_signal(signal.SIGCONT)
    check("and they go on", settle(lambda: len(s := states()) >= 2 and "T" not in s))
    process.send_signal(signal.SIGINT)
    expect("after Ctrl-Z", end("after Ctrl-Z", process), 0, "saved")

    # Restarts.
    r = run("restart", "-n", 2, "--max-restarts", 3, "--restart-pause", 0, "sh", "-c", 'echo try $TORCHELASTIC_RESTART_COUNT $LOCKSTEP_TOKEN; if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && [ $RANK = 1 ]; then exit 9; fi; test $TORCHELASTIC_RESTART_COUNT = 2 || sleep 1000')
    expect("restarts until it works", r, 0, "rank 1 ended with exit code 9", "restart 1 of 3", "restart 2 of 3", "[rank 0] try 2")
    check("a fresh token each time", len({line.split()[-1] for line in r.stdout.splitlines()}) == 3, r.stdout)
    r = expect("no more restarts", run("no more", "-n", 2, "--max-restarts", 1, "sh", "-c", "exit 4"), 4, "restart 1 of 1")
    check("two attempts", r.stderr.count("ended with exit code 4 after") == 2, r.stderr)
    start = time.monotonic()
    expect("pauses that grow", run("pauses", "--max-restarts", 3, "--restart-pause", 0.2, "sh", "-c", "exit 4"), 4, "again in 0.2 s (restart 1 of 3)", "again in 0.4 s (restart 2", "again in 0.8 s (restart 3")
    check("and are kept", time.monotonic() - start > 1.4, time.monotonic() - start)
    process = begin("--max-restarts", 1, "--restart-pause", 60, "sh", "-c", "exit 4")
    check("a long pause", any(b"again in 60 s" in line for line in iter(process.stderr.readline, b"")))
    process.send_signal(signal.SIGTERM)
    check("SIGTERM ends a pause", end("SIGTERM in a pause", process).returncode == 143 and time.monotonic() - start < 10)
    expect("a pause that is too long", run("too long", "--restart-pause", 61, "true"), 2, "--restart-pause from 0 to 60")

    # Cores.
    r = run("cores", "-n", cores, "--bind-cores-to-rank", "sh", "-c", "echo $(grep Cpus_allowed_list /proc/self/status) $OMP_NUM_THREADS")
    allowed = sorted(re.findall(r"Cpus_allowed_list: (\d+) 1$", r.stdout, re.M), key=int)
    check("each rank has a core of its own", allowed == [str(c) for c in sorted(os.sched_getaffinity(0))], r.stdout)
    expect("NUMA", run("NUMA", "-n", 2, "--numa-binding", "node", "true"), 0, "rank 1 runs on cores")

    # Two launchers, one per node.
    (d / "token").write_text("0123456789abcdef0123456789abcdef\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = lambda k, *more: ["--nnodes", 2, "--node-rank", k, "-n", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", f"token_file={d / 'token'}", *more, "--", "sh", "-c", show]
    expect("a token that others can read", run("open token", *node(0)), 2, "can be read by others", "chmod 600")
    (d / "token").chmod(0o600)
    expect("restarts of one node alone", run("alone", *node(0, "--max-restarts", 1)), 2, "--hostfile")
    ranks = variables(run("node 1", *node(1)).stdout)
    want = dict(WORLD_SIZE="4", GROUP_RANK="1", LOCAL_WORLD_SIZE="2", CROSS_SIZE="2", MASTER_PORT=str(port), LOCKSTEP_TOKEN="0123456789abcdef0123456789abcdef")
    check("ranks of the second node", sorted(ranks) == [2, 3] and all(ranks[2][n] == w for n, w in want.items()) and ranks[3]["LOCAL_RANK"] == "1", ranks)

    # Hosts behind ssh: a stand-in that prints its arguments and runs the command here.
    (d / "bin").mkdir()
    ssh = d / "bin/ssh"
    ssh.write_text(f"""#!/bin/sh
echo "$@" >> {d}/asked
while :; do case $1 in -o|-p) shift 2;; -*) shift;; *) break;; esac; done
host=$1; shift
case $host in
  dead) echo 'ssh: connect to host dead port 22: No route to host' >&2; exit 255;;
  silent) exec sleep 1000;;
  noisy) echo 'Welcome to noisy';;
  chatty) exec yes Welcome;;
esac
cd / && FAKE_HOST=$host exec sh -c "$*"
""")
    ssh.chmod(0o755)
    hosts = d / "hosts"
    hosts.write_text("# a comment\nalpha slots=2\n\nnoisy slots=1\n")
    through = {"PATH": f"{d / 'bin'}:{os.environ['PATH']}"}
    remote = ["-H", hosts, "--master-addr", "127.0.0.1", "--master-port", port]
    with_host = "echo FAKE_HOST=$FAKE_HOST; echo PWD=$PWD; " + show
    r = run("hosts", *remote, "--ssh-port", 2222, "--launcher-args", "-v", "--", "sh", "-c", with_host, env=through)
    ranks = variables("\n".join(line for line in r.stdout.splitlines() if line.startswith("[rank")))
    check("ranks over hosts", r.returncode == 0 and sorted(ranks) == [0, 1, 2], r.stdout + r.stderr)
    check("their variables", [(v["FAKE_HOST"], v["LOCAL_RANK"], v["GROUP_RANK"], v["LOCAL_WORLD_SIZE"], v["WORLD_SIZE"]) for _, v in sorted(ranks.items())] ==
          [("alpha", "0", "0", "2", "3"), ("alpha", "1", "0", "2", "3"), ("noisy", "0", "1", "1", "3")] and {v["PWD"] for v in ranks.values()} == {os.getcwd()}, ranks)
    check("one secret, port and job", len({(v["LOCKSTEP_TOKEN"], v["MASTER_PORT"], v["LOCKSTEP_JOB"]) for v in ranks.values()}) == 1)
    check("connected hosts are named", "host alpha: connected after" in r.stderr and "host noisy: connected after" in r.stderr and "Welcome to noisy" in r.stdout, r.stderr)
    asked = (d / "asked").read_text()
    check("the secret is on no command line", ranks[0]["LOCKSTEP_TOKEN"] not in asked and asked.count("-p 2222 -v") == 2, asked)
    r = run("some hosts", *remote, "-e", "alpha:1@noisy", "--force-multi", "sh", "-c", "echo $RANK/$WORLD_SIZE $FAKE_HOST $CUDA_VISIBLE_DEVICES", env=through)
    check("exclude", "0/1 alpha 0" in r.stdout, r.stdout + r.stderr)
    expect("failure on a host", run("failure on a host", *remote, "sh", "-c", "if [ $RANK = 2 ]; then echo why >&2; exit 6; fi; sleep 1000", env=through), 6, "rank 2 ended with exit code 6", "host noisy: its launcher ended with exit code 6")
    expect("restart over hosts", run("restart over hosts", *remote, "--max-restarts", 2, "sh", "-c", "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; test $TORCHELASTIC_RESTART_COUNT = 1", env=through), 0,
           "[rank 2] try 1 of 2", "restart 1 of 2")
    hosts.write_text("alpha slots=1\ndead slots=1\n")
    expect("ssh fails", run("ssh fails", *remote, "sleep", "1000", env=through), 1, "host dead: no launcher answered: ssh ended with exit code 255", "No route to host", "ssh dead true")
    hosts.write_text("alpha slots=1\nchatty slots=1\n")
    start = time.monotonic()
    r = expect("a host that talks", run("a host that talks", *remote, "sleep", "1000", env=through), 1, "host chatty: no launcher answered: more than 64 KiB of something else")
    check("is heard no longer than that", len(r.stdout) < 200_000 and time.monotonic() - start < 15, (len(r.stdout), time.monotonic() - start))
    hosts.write_text("alpha slots=1\nsilent slots=1\n")
    expect("ssh hangs", run("ssh hangs", *remote, "--connect-timeout", 1, "sleep", "1000", env=through), 1, "host silent: no launcher answered: nothing in 1.0 s")
    hosts.write_text("alpha slots=2\nlocalhost slots=1\n")
    for name, script, signals, code in (("Ctrl-C over hosts", good, [signal.SIGINT], 0), ("Ctrl-C twice over hosts", deaf, [signal.SIGINT] * 2, 130), ("kill -9 over hosts", deaf, [signal.SIGKILL], -9)):
        process = begin(*remote, "sh", "-c", script, env=through)
        check(f"{name}: starts", ready(process, 3))
        for one in signals:
            process.send_signal(one)
            time.sleep(0.3)
        expect(name, end(name, process), code)
    remove_temporary()
    trap = d / "trap"  # a link in place of the file; the launcher has the process id of its shell
    r = subprocess.run(["sh", "-c", f'ln -s {trap} {d}/$$.lockstep && exec "$@"', "sh", str(LOCKSTEP), "run", "--save-pid", "true"], capture_output=True, text=True, env=os.environ)
    check("--save-pid follows no link", r.returncode == 1 and "--save-pid cannot make" in r.stderr and not trap.exists(), r.stderr)
    for link in d.glob("*.lockstep"):
        link.unlink()
    r = run("pid", "--save-pid", "sh", "-c", f"cat {d}/*.lockstep")
    check("--save-pid", re.fullmatch(r"\d+\n", r.stdout) and temporary() == [], r.stdout + str(temporary()))

    # Start-up time: 4 ranks that do nothing.
    times = []
    for _ in range(5):
        start = time.monotonic()
        run("start", "-q", "-n", 4, "true")
        times.append(time.monotonic() - start)
    check("starting and ending 4 ranks", min(times) < 0.5, times)
    print(f"starting and ending 4 ranks: {min(times) * 1000:.0f} ms")

finish()
