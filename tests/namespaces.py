#!/usr/bin/env python3
"""Two hosts in network namespaces: a job over a real network stack, also if the cable is cut, is slow, or loses
packets.

tests/namespaces.py BUILD_FOLDER          ends with "N passed, N failed"; exit code 77 (skipped) if namespaces are not
                                        permitted

host 0, this process's namespace                            host 1
10.77.0.1, fd77::1                lan0 ======= lan1         10.77.0.2, fd77::2
10.78.0.1                        data0 ======= data1        10.78.0.2
10.79.0.1                        slow0 -- us -- slow1       10.79.0.2

Both namespaces are anonymous: they and their cables end with their processes, also if this script is killed.
"""
import concurrent.futures
import ctypes
import fcntl
import heapq
import json
import os
import pathlib
import random
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time

from leftovers import left_behind
from programs import began, check, environment, finish, saved, settle, workplace

BUILD = pathlib.Path(sys.argv[1]).resolve()
INSIDE = "LOCKSTEP_TEST_INSIDE"
PR_SET_PDEATHSIG = 1
FEW = 2  # steps over the slow network
TIMES = {"LOCKSTEP_TIMEOUT": "120", "LOCKSTEP_HEARTBEAT": "5"}
libc = ctypes.CDLL(None)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def enter():
    """Starts this script again in its own network namespace, as root of a new user namespace if that is allowed."""
    why = ""
    for flags in ("-Urn", "-n"):
        try:
            tried = subprocess.run(["unshare", flags, "sh", "-c", "ip link set lo up && ip link add lan0 type veth peer name lan1"], capture_output=True, text=True)
        except FileNotFoundError:
            skip("there is no unshare (util-linux)")
        if tried.returncode == 0:
            os.execvpe("unshare", ["unshare", flags, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
        why = why or tried.stderr.strip()
    skip(f"network namespaces with veth are not permitted here: {why}")


def die_with_us():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


class Hosts:
    """Host 0 is this namespace. A process holds host 1, until our end of its pipe closes."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=die_with_us)
        namespace = lambda pid: os.readlink(f"/proc/{pid}/ns/net")
        assert settle(lambda: namespace(self.holder.pid) != namespace("self")), "host 1 does not come up"
        self.there = ["nsenter", "-t", str(self.holder.pid), "-n"]
        ip("link", "set", "lo", "up")
        self.on(1, "ip", "link", "set", "lo", "up")
        for k, name in enumerate(("lan", "data")):
            ip("link", "add", f"{name}0", "type", "veth", "peer", "name", f"{name}1", "netns", self.holder.pid)
            self.address(name, f"10.{77 + k}.0.{{}}/24")
        for host in (0, 1):
            self.on(host, "ip", "-6", "addr", "add", f"fd77::{host + 1}/64", "dev", f"lan{host}", "nodad")

    def address(self, name, address):
        for host in (0, 1):
            self.on(host, "ip", "addr", "add", address.format(host + 1), "dev", f"{name}{host}")
            self.on(host, "ip", "link", "set", f"{name}{host}", "up")

    def command(self, host, words):
        return [*(self.there if host else []), *map(str, words)]

    def on(self, host, *words):
        return subprocess.run(self.command(host, words), check=True, capture_output=True, text=True).stdout

    def sent(self, name):
        """Bytes that host 0 has sent over an interface."""
        return json.loads(self.on(0, "ip", "-s", "-j", "link", "show", "dev", name))[0]["stats64"]["tx"]["bytes"]

    def close(self):
        # now, because a connection that waits for its last acknowledgement keeps a namespace for a while
        for name in ("lan0", "data0"):
            ip("link", "del", name)
        self.holder.stdin.close()
        self.holder.wait(20)


class SlowCable(threading.Thread):
    """A cable between the hosts, emulated by this process: every packet is delayed, some are lost. Used if the kernel
    has no netem.
    """

    TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000

    def __init__(self, hosts, delay, loss):
        super().__init__(daemon=True)
        self.delay, self.loss, self.lost, self.passed = delay, loss, 0, 0
        self.ends, self.stopped = [], False
        for host in (0, 1):
            self.ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            fcntl.ioctl(self.ends[host], self.TUNSETIFF, struct.pack("16sH22x", f"slow{host}".encode(), self.IFF_TUN | self.IFF_NO_PI))
        ip("link", "set", "slow1", "netns", hosts.holder.pid)
        hosts.address("slow", "10.79.0.{}/24")
        self.start()

    def run(self):
        lucky, order, waiting = random.Random(7), 0, []  # waiting: (due, number, end, packet)
        while not self.stopped:
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
            for end in select.select(self.ends, [], [], min(wait, 0.2))[0]:
                try:
                    packet = os.read(end, 65536)
                except BlockingIOError:
                    continue
                if lucky.random() < self.loss:
                    self.lost += 1
                    continue
                order += 1
                heapq.heappush(waiting, (time.monotonic() + self.delay, order, self.ends[end == self.ends[0]], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(waiting)
                os.write(end, packet)
                self.passed += 1

    def close(self):
        self.stopped = True
        self.join()
        for end in self.ends:
            os.close(end)


class Job:
    """`lockstep run` on each of the two hosts."""

    def __init__(self, hosts, folder, program, ranks=(2, 2), address="10.77.0.1", port=29500, **variables):
        self.processes = []
        for host in (0, 1):
            run = [BUILD / "apps/lockstep", "run", "--nnodes", 2, "--node-rank", host, "--nproc", ranks[host], "--rdzv-endpoint", f"{address}:{port}", "--rdzv-conf", f"token_file={folder / 'token'}"]
            if ranks[0] != ranks[1]:
                run += ["--ranks-per-node", ",".join(map(str, ranks))]
            own = {name: str(value[host] if isinstance(value, tuple) else value) for name, value in variables.items()}
            self.processes.append(subprocess.Popen(hosts.command(host, [*run, "--", *program]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                                   env=environment(**TIMES | own), preexec_fn=die_with_us))

    def end(self, seconds=240):
        """(exit codes, output of each launcher and its ranks)"""
        said, until = ["", ""], time.monotonic() + seconds
        for host, process in enumerate(self.processes):
            try:
                said[host] = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                said[host] = process.communicate()[0] + f"\nstill there after {seconds} s"
        return [process.returncode for process in self.processes], said


def tests(hosts, d, pool):
    (d / "token").write_text("0123456789abcdef0123456789abcdef\n")
    (d / "token").chmod(0o600)
    gpt = [BUILD / "apps/gpt", "train", "--text", d / "text.txt", "--model", "gpt:1x32x2", "--context", 32, "--batch", 2, "--warmup", 5, "--dropout", 0.1, "--set", "zero_optimization.reduce_bucket_size=5242", "--json"]
    left = lambda out: (saved(out), (out / "metrics.jsonl").read_text())
    full = {}

    def one_host(name, program, **variables):
        """The results of a run of 4 ranks on one host."""
        if name not in full:
            r = subprocess.run([str(w) for w in [BUILD / "apps/lockstep", "run", "-n", 4, "--", *program, "--out", d / name]], capture_output=True, text=True, env=environment(**TIMES | variables), timeout=240)
            check(f"{name} on one host", r.returncode == 0, r.stdout + r.stderr)
            full[name] = left(d / name)
        return full[name]

    def ends_well(name, codes, said, out, expected):
        check(f"{name}: ends well", codes == [0, 0], said)
        check(f"{name}: the parameters, optimizer and losses of one host, to the bit", codes == [0, 0] and left(out) == expected, said)

    def trains(name, program, expected, ranks=(2, 2), **variables):
        out = d / re.sub(r"\W", "_", name)
        ends_well(name, *Job(hosts, d, [*program, "--out", out], ranks, **variables).end(), out, expected)

    # 21: 200 ms in each direction, and 1% of packets lost. It mostly waits, so the other tests run meanwhile.
    slow, few, small = None, d / "few over a slow network", [{"gpt:1x32x2": "gpt:1x8x2", 32: 8}.get(word, word) for word in gpt]
    try:
        cable = SlowCable(hosts, 0.2, 0.01)
    except OSError as error:
        print(f"21, a slow network: skipped, no TUN device here ({error})")
    else:
        started_slow, slow_job = time.monotonic(), Job(hosts, d, [*small, "--steps", FEW, "--out", few], address="10.79.0.1", port=29501)
        slow = pool.submit(lambda: (*slow_job.end(), time.monotonic() - started_slow))

    short = [*gpt, "--steps", 12]
    # Shared memory within a host, TCP between hosts. Each algorithm gives the bits that it gives on one host; direct,
    # tree and halving_doubling add in the same order, and so does hierarchical if hosts have equal numbers of ranks
    # that are powers of two.
    for algorithm in ("direct", "tree", "halving_doubling", "hierarchical", "server", "ring"):
        as_one = "calm" if algorithm in ("direct", "tree", "halving_doubling", "hierarchical") else algorithm
        trains(f"two hosts, {algorithm}", short, one_host(as_one, short, **({} if as_one == "calm" else {"LOCKSTEP_ALGORITHM": algorithm})), LOCKSTEP_ALGORITHM=algorithm)
    calm = one_host("calm", short)
    trains("two hosts, 3 + 1 ranks", short, calm, ranks=(3, 1))
    trains("two hosts, IPv6", short, calm, address="[fd77::1]")
    # The store is reached over lan; data goes over the selected interface.
    for name, interface in (("an interface by name", ("data0", "data1")), ("an interface by subnet", "10.78.0.0/24")):
        before = hosts.sent("lan0"), hosts.sent("data0")
        trains(name, short, calm, LOCKSTEP_INTERFACE=interface)
        lan, data = hosts.sent("lan0") - before[0], hosts.sent("data0") - before[1]
        check(f"{name}: data go over it", data > 1_000_000 and lan < data / 2, (lan, data))
    codes, said = Job(hosts, d, short, LOCKSTEP_INTERFACE=("data0", "data7")).end()
    check("an interface that is not there", 0 not in codes and "expected a network interface or subnet of this machine, got 'data7'; this machine has " in said[1] and "data1 10.78.0.2" in said[1], said)

    for ranks in ((1, 1), (2, 2), (2, 1)):
        codes, said = Job(hosts, d, [BUILD / "tests/test_dist", "--no-skip", "--test-case=group: a rank of a job"], ranks).end()
        check(f"every collective on {ranks[0]} + {ranks[1]} ranks", codes == [0, 0] and "".join(said).count("1 passed") == sum(ranks), said)

    def started(name):
        """Starts an endless run; returns it after its first steps."""
        job = Job(hosts, d, [*gpt, "--steps", 1_000_000, "--eval-every", 1_000_000, "--out", d / name], LOCKSTEP_HEARTBEAT=0.5)
        check(f"{name}: starts", settle(lambda: began(d / name, 5), 60), job.processes[0].poll())
        return job

    # 20: the cable is cut, at either end.
    for host in (0, 1):
        job = started(f"20 cut at host {host}")
        start = time.monotonic()
        hosts.on(host, "ip", "link", "set", f"lan{host}", "down")
        codes, said = job.end(60)
        seconds = time.monotonic() - start
        hosts.on(host, "ip", "link", "set", f"lan{host}", "up")
        check(f"20: the cable is cut at host {host}: both sides end in failure", 0 not in codes, (codes, said))
        for here, silent in ((0, "[23]"), (1, "0")):
            check(f"20: host {here} names the silent rank", re.search(rf"error: rank \d: rank {silent} \(pid \d+ on [^)]*\)(, which hosts the store,)? is silent: no heartbeat for 1\.\d* s", said[here]), said[here])
        check(f"20: three heartbeats of 0.5 s, and the launchers' own time: {seconds:.1f} s", seconds < 10, said)
    # A cable that is unplugged for less than three heartbeats is no failure.
    out = d / "unplugged"
    job = Job(hosts, d, [*gpt, "--steps", 300, "--out", out], LOCKSTEP_HEARTBEAT=2)
    check("unplugged for a moment: starts", settle(lambda: began(out, 5), 60))
    ip("link", "set", "lan0", "down")
    time.sleep(1)
    ip("link", "set", "lan0", "up")
    codes, said = job.end()
    expected = one_host("long", [*gpt, "--steps", 300])
    check("unplugged for a moment: goes on, to the bits of one host", codes == [0, 0] and left(out) == expected, (codes, said))

    if slow:
        codes, said, seconds = slow.result()
        ends_well("21: 200 ms and 1 % loss", codes, said, few, one_host("few", [*small, "--steps", FEW]))
        check("21: packets were late, and lost", seconds > FEW * 0.4 and cable.lost > 0, (seconds, cable.lost, cable.passed))
        print(f"21: {seconds:.1f} s; {cable.passed} packets passed, {cable.lost} lost")
        cable.close()


def main():
    if INSIDE not in os.environ:
        enter()
    hosts = Hosts()
    with workplace() as (d, _), concurrent.futures.ThreadPoolExecutor(1) as pool:
        tests(hosts, d, pool)
        check("nothing is left", not left_behind(d), left_behind(d))
    hosts.close()
    devices = lambda: {line["ifname"] for line in json.loads(subprocess.run(["ip", "-j", "link"], check=True, capture_output=True, text=True).stdout)}
    check("no cable is left", settle(lambda: devices() == {"lo"}), devices())
    finish()


sys.exit(main())
