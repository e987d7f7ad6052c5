#!/usr/bin/env python3
"""Strangers flood the ports of a job with connections, while its ranks meet and while they train: it starts, trains,
and ends with the bits of an undisturbed run.

tests/flood.py BUILD_FOLDER          ends with "N passed, N failed"

Four unprivileged processes connect to all ports of the job as often as they can: 2 seconds while the ranks meet and 2
while they train; 30 seconds each with LONG=1.
"""
import os
import pathlib
import socket
import subprocess
import sys
import time
import uuid

from leftovers import processes_with
from programs import APPS, began, check, environment, finish, saved, workplace

SECONDS, STEPS = (30, 40000) if os.environ.get("LONG") else (2, 3000)
RANKS, FLOODERS, DELAY = 4, 4, 5

# Each process holds up to 250 connections and replaces the oldest by a new one: silent, in the middle of a message, or
# with a wrong answer. It ends at the end of its input.
FLOODER = r"""
import collections, os, select, socket, struct, sys
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
words = [b"", b"LSc1", b"GET / HTTP/1.1\r\n\r\n", b"x" * 5000]
held, ports, made, buffered = collections.deque(), [], 0, b""
while True:
    if select.select([0], [], [], 0 if ports else 1)[0]:
        line = os.read(0, 65536)
        if not line:
            break
        buffered += line
        *lines, buffered = buffered.split(b"\n")
        if lines:
            ports = [int(port) for port in lines[-1].split()]
    for port in ports:
        for word in words:
            try:
                s = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no port stays taken behind it
                s.connect_ex(("127.0.0.1", port))
                held.append(s)
                made += 1
                if word:
                    s.send(word)
            except OSError:
                pass
            if len(held) > 250:
                held.popleft().close()
print(made)
"""


def ports_of(mark):
    """The ports on which processes with this mark in their environment listen."""
    sockets = set()
    for pid in processes_with(mark):
        try:
            for fd in os.scandir(f"/proc/{pid}/fd"):
                sockets.add(os.readlink(fd.path))
        except OSError:
            pass
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def job(d, name, flooded):
    """Trains. Returns the seconds from the start of the last rank to the first step, and the connections per second."""
    mark = f"LOCKSTEP_TEST_MARK={uuid.uuid4().hex}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gpt = [APPS / "gpt", "train", "--text", d / "text.txt", "--model", "gpt:1x16x2", "--context", 16, "--batch", 2, "--warmup", 5, "--dropout", 0.1, "--eval-every", 1 << 30,
           "--steps", STEPS, "--save-every", STEPS, "--out", d / name, "--json"]
    # the other ranks wait this long, while the store listens
    late = f'if [ $RANK = 3 ]; then sleep {SECONDS}; fi; exec "$@"'
    log = open(d / f"{name}.log", "w+")
    flooders = [subprocess.Popen([sys.executable, "-c", FLOODER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(FLOODERS if flooded else 0)]
    process = subprocess.Popen([str(word) for word in (APPS / "lockstep", "run", "-n", RANKS, "--master-port", port, "--", "sh", "-c", late, "sh", *gpt)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               env=environment(LOCKSTEP_TRANSPORT="tcp", LOCKSTEP_TEST_MARK=mark.split("=")[1]))
    start, first, reported, ports, floods = time.monotonic(), None, set(), set(), True
    while process.poll() is None and time.monotonic() - start < 600:
        now = time.monotonic()
        if first is None and began(d / name, 1):
            first = now
        if floods and first and now - first > SECONDS:
            floods = False
            for flooder in flooders:
                flooder.stdin.close()
        targets = ports_of(mark) if floods else reported
        if targets != reported:
            reported = targets
            ports |= targets
            for flooder in flooders:
                flooder.stdin.write((" ".join(map(str, sorted(targets))) + "\n").encode())
                flooder.stdin.flush()
        time.sleep(0.05)
    code = process.poll()
    if code is None:
        process.kill()
    made = 0
    for flooder in flooders:
        if floods:
            flooder.stdin.close()
        made += int(flooder.stdout.read() or 0)
        flooder.wait()
    log.seek(0)
    check(f"{name}: the job trains to its end", code == 0 and first, log.read()[-4000:])
    check(f"{name}: it trained as long as that", first and time.monotonic() - first > SECONDS, STEPS)
    begin = (first or time.monotonic()) - start - SECONDS
    return begin, made / (begin + 2 * SECONDS), len(ports)


with workplace(60) as (d, _):
    calm, *_ = job(d, "calm", False)
    flooded, rate, ports = job(d, "flooded", True)
    print(f"flood: {rate:.0f} connections a second at {ports} ports; the first step {calm:.1f} s after the last rank came, flooded {flooded:.1f} s")
    check("the flood was one", rate > 500 and ports > RANKS, (rate, ports))
    check(f"the start is delayed by at most {DELAY} s", flooded - calm < DELAY, (calm, flooded))
    check("the bits of the calm run", saved(d / "calm") == saved(d / "flooded") != [])

finish()
