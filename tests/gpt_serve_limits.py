#!/usr/bin/env python3
"""gpt serve among strangers: limits apply while a request is read, and neither many nor slow clients block others.

tests/gpt_serve_limits.py BUILD_FOLDER          ends with "N passed, N failed"

LONG=1: the mix lasts 60 s, with 2,000 idle clients.
"""
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import threading
import time

from programs import check, finish, refused, workplace, works
from serving import Server

# SECONDS: longer than a request may take
IDLE, EACH, SECONDS = (2000, 64, 60) if os.environ.get("LONG") == "1" else (300, 16, 13)
MAX_GROWTH = 100 << 20  # bytes that the server's memory may grow
JSON = "Content-Type: application/json\r\n"
MIB = 1 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def head(path="/v1/completions", more=JSON, method="POST", version="1.1", host="localhost"):
    return f"{method} {path} HTTP/{version}\r\n{f'Host: {host}' if host else 'X: x'}\r\n{more}\r\n".encode()


def post(body, more="", **fields):
    return head(more=f"{JSON}{more}Content-Length: {len(body)}\r\n", **fields) + body


def answers(port, request, endless=b"", half=False):
    """Sends a request, then `endless` repeatedly until that fails; returns all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        try:
            s.sendall(request)
            for _ in range(400 if endless else 0):
                s.sendall(endless)
        except OSError:
            pass
        if half:
            s.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while more := s.recv(1 << 16):
                out += more
        except OSError:
            pass
        return out


def resident(server):
    return next(int(line.split()[1]) << 10 for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


ASK = json.dumps(dict(prompt="the ", max_tokens=5, temperature=0)).encode()
CLOSE = "Connection: close\r\n"
CHUNKED = head(more=f"{JSON}Transfer-Encoding: chunked\r\n")
# name: (request, data sent repeatedly, status, part of the message)
REFUSED = {
    "brotli": (post(b"x" * 700, "Content-Encoding: br\r\n"), b"", 415, "Content-Encoding"),
    "gzip": (post(b"x" * 700, "Content-Encoding: gzip\r\n"), b"", 415, "gzip"),
    "gzip as a transfer": (head(more=f"{JSON}Transfer-Encoding: gzip, chunked\r\n"), b"", 415, "gzip"),
    "a long body": (head(more=f"{JSON}Content-Length: {2 * MIB}\r\n"), b"", 413, "at most 1 MiB"),
    "endless chunks": (CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n", 413, "at most 1 MiB"),
    "chunks of a byte": (CHUNKED, b"1;" + b"x" * 60000 + b"\r\n.\r\n", 413, "at most 1 MiB"),
    "an endless size of a chunk": (CHUNKED, b"1;" + b"x" * 65536, 413, "chunk-size lines"),
    "endless headers": (b"GET /health HTTP/1.1\r\n", b"a: b\r\n" * 5000, 431, "64 KiB of headers"),
    "an endless header": (b"GET /health HTTP/1.1\r\na: ", b"b" * 65536, 431, "64 KiB of headers"),
    "an endless path": (b"GET /", b"b" * 65536, 431, "64 KiB of headers"),
    "HTTP/1.0 without a length": (head(version="1.0"), b"x" * 65536, 411, "Content-Length"),
    "no HTTP": (b"\x16\x03\x01\r\n\r\n", b"", 400, "HTTP/1.1"),
    "another version": (head(version="3.1", method="GET", path="/health"), b"", 400, "HTTP/1.1"),
    "no host": (head(host="", method="GET", path="/health"), b"", 400, "Host"),
    "two hosts": (head(more="Host: x\r\n", method="GET", path="/health"), b"", 400, "Host"),
    "a host of another's": (post(ASK, host="evil.example:80"), b"", 403, "evil.example"),
    "another page": (post(ASK, "Origin: http://evil.example\r\n"), b"", 403, "--allow-origin"),
    "no page": (post(ASK, "Origin: null\r\n"), b"", 403, "--allow-origin"),
    "text": (head(more="Content-Type: text/plain\r\nContent-Length: 2\r\n") + b"{}", b"", 415, "application/json"),
    "no type": (head(more="Content-Length: 2\r\n") + b"{}", b"", 415, "application/json"),
    "an expectation": (post(ASK, "Expect: more\r\n"), b"", 417, "100-continue"),
    "a long stop": (post(json.dumps(dict(prompt="x", stop="y" * 1025)).encode(), CLOSE), b"", 400, "at most 1024 bytes"),
    "many prompts": (post(json.dumps(dict(prompt=["x" * 2100] * 128, max_tokens=1)).encode(), CLOSE), b"", 400, "262144 tokens"),
}
FULL = {
    "a range": post(ASK, "Range: bytes=0-3\r\n" + CLOSE),
    "a type with a charset": head(more=f"Content-Type: Application/JSON; charset=utf-8\r\nContent-Length: {len(ASK)}\r\n{CLOSE}") + ASK,
    "HTTP/1.0": post(ASK, version="1.0", host=""),
    "its own page": post(ASK, "Origin: http://localhost\r\n" + CLOSE),
    "an address as host": post(ASK, CLOSE, host="[::1]:80"),
    "chunks": head(more=f"{JSON}Transfer-Encoding: chunked\r\n{CLOSE}") + b"".join(b"1;e=x\r\n%c\r\n" % c for c in ASK) + b"0\r\n\r\n",
    "an identity": post(ASK, "Content-Encoding: identity\r\n" + CLOSE),
}


def attack(port, until):
    """Sends requests of every kind, repeatedly, until the given time."""
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE)]
    endless = [REFUSED[name][:2] for name in ("brotli", "gzip", "endless chunks", "endless headers", "an endless size of a chunk", "HTTP/1.0 without a length", "a long body")]

    def again(i):
        while time.time() < until:
            try:
                answers(port, *endless[i % len(endless)])
            except OSError:
                pass

    def slowly():
        held = {}
        while time.time() < until:
            for i in range(EACH):
                try:
                    if i not in held:
                        held[i] = socket.create_connection(("127.0.0.1", port))
                        held[i].sendall(CHUNKED + b"100000\r\n" + b"x" * 500_000 if i % 2 else b"GET /health HTTP/1.1\r\n")
                    held[i].sendall(b"x")
                except OSError:
                    held.pop(i, None)
            time.sleep(0.5)

    threads = [threading.Thread(target=slowly)] + [threading.Thread(target=again, args=(i,)) for i in range(EACH)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    del idle


with workplace(1000) as (d, text):
    works("train", ["gpt", "train", "--text", text, "--model", "gpt:2x32x2", "--context", 4096, "--batch", 1, "--steps", 1, "--warmup", 0, "--eval-batches", 1, "--out", d / "run"])

    with Server(d / "run", "--blocks", 300) as s:
        usual = s.text(max_tokens=5, temperature=0)
        before = resident(s)
        late = socket.create_connection(("127.0.0.1", s.port), timeout=30)
        late.sendall(b"GET /health HTTP/1.1\r\n")
        for name, (request, endless, status, part) in REFUSED.items():
            said = answers(s.port, request, endless)
            check(f"refused: {name}", said.startswith(b"HTTP/1.1 %d " % status) and b'{"error":' in said and part.encode() in said, f"{said[:400]}")
        check("nothing of it stays in memory", resident(s) < before + MAX_GROWTH, f"{before} {resident(s)}")
        for name, request in FULL.items():
            said = answers(s.port, request)
            check(f"whole: {name}", said.startswith(b"HTTP/1.1 200 OK\r\n") and json.loads(said.split(b"\r\n\r\n")[-1])["choices"][0]["text"] == usual, f"{said}")
        # A client that only closes its sending side gets all of a long answer, as a whole and as a stream.
        for stream in (False, True):
            body = json.dumps(dict(prompt="the ", max_tokens=600, seed=1, stream=stream)).encode()
            said = answers(s.port, post(body, CLOSE), half=True)
            check("half-closed", said.startswith(b"HTTP/1.1 200 OK\r\n") and b'"finish_reason": "length"' in said.replace(b'":"', b'": "'), f"{said[:300]} ... {said[-300:]}")
        said = answers(s.port, b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + head("/health", CLOSE, "GET"))
        one, other, body = said.split(b"\r\n\r\n")
        check("HEAD, and the next of the same connection", b"Content-Length: %d" % len(body) in one and b"Content-Length: %d" % len(body) in other and json.loads(body) == {"status": "ok"}, f"{said}")
        with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
            c.sendall(head(more=f"{JSON}Content-Length: {len(ASK)}\r\nExpect: 100-continue\r\n{CLOSE}"))
            check("Expect: 100-continue", c.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n")
            c.sendall(ASK)
            check("and then", c.recv(1000).startswith(b"HTTP/1.1 200 OK"))

        # The maximum number of concurrent requests; waiting ones do not slow down the others.
        body = json.dumps(dict(prompt="x", max_tokens=4000, stream=True)).encode()
        held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(64)]
        for one in held:
            one.sendall(post(body))
        for one in held:
            one.recv(10)
        check("one request too many", answers(s.port, post(ASK, CLOSE)).startswith(b"HTTP/1.1 503 "))
        check("health beside them", s.ask("GET", "/health")[0] == 200)
        for one in held:
            one.close()
        s.until("they are gone", lambda f: f["requests_running"] == f["requests_waiting"] == f["blocks_used"] == 0)

        said = late.recv(1000)
        check("a request has a deadline", said.startswith(b"HTTP/1.1 408 ") and b"within 10 s" in said, f"{said}")

        # A mix of all kinds of clients.
        before, until, slowest, peak_bytes = resident(s), time.time() + SECONDS, 0, 0
        deaf, silent = socket.socket(), socket.create_connection(("127.0.0.1", s.port), timeout=30)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", s.port))
        deaf.sendall(post(json.dumps(dict(prompt="x", max_tokens=4000, n=4, stream=True)).encode()))
        asked = time.monotonic()
        attackers = multiprocessing.get_context("fork").Process(target=attack, args=(s.port, until))
        attackers.start()
        failed = []
        while time.time() < until:
            begun = time.monotonic()
            try:
                failed += [] if s.ask("GET", "/health")[0] == 200 else ["status"]
            except OSError as error:
                failed.append(str(error))
            slowest, peak_bytes = max(slowest, time.monotonic() - begun), max(peak_bytes, resident(s))
            time.sleep(0.05)
        check("health within 1 s in the mix", not failed and slowest < 1, f"{slowest:.3f} s {failed[:3]}")
        check("memory in the mix", peak_bytes < before + MAX_GROWTH, f"{before} {peak_bytes}")
        if SECONDS > 30:
            check("silence has a deadline", silent.recv(10) == b"")
        time.sleep(max(0, asked + 18 - time.monotonic()))
        deaf.settimeout(10)
        said = b""
        try:
            while more := deaf.recv(1 << 16):
                said += more
        except ConnectionResetError:
            pass
        check("who reads nothing is dropped", said and b"[DONE]" not in said, f"{len(said)} {said[-300:]}")
        check("everything is answered after it", s.text(max_tokens=5, temperature=0) == usual)
        print(f"slowest /health {slowest * 1000:.0f} ms, {(peak_bytes - before) / 1e6:.1f} MB above before", flush=True)
        attackers.join(30)
        check("the attackers end", attackers.exitcode == 0, str(attackers.exitcode))

        # SIGTERM ends the server although clients stay connected.
        kept = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(50)]
        for i, one in enumerate(kept):
            one.sendall(post(body) if i < 10 else CHUNKED if i < 20 else b"GET / HT" if i < 30 else b"")
        time.sleep(0.5)
        s.signal = signal.SIGTERM

    # API keys, and the addresses on which it may listen.
    refused("others could reach it", ["gpt", "serve", d / "run", "--host", "0.0.0.0", "--port", 0], "expected an API key to listen at 0.0.0.0", "--api-key-file")
    (d / "key").write_text("secret\n")
    (d / "empty").write_text("\n")
    refused("an empty file", ["gpt", "serve", d / "run", "--api-key-file", d / "empty"], "expected a key, got an empty file")
    refused("two keys", ["gpt", "serve", d / "run", "--api-key-file", d / "key", "--api-key", "x"], "--api-key", code=2)
    refused("a key that no header holds", ["gpt", "serve", d / "run", "--api-key", "a b"], "without spaces")
    for args, variables in ((["--api-key-file", d / "key", "--host", "0.0.0.0"], {}), ([], {"LOCKSTEP_API_KEY": "secret"})):
        with Server(d / "run", *args, **variables) as s:
            check("with the key", [s.ask("GET", "/v1/models", None, **h)[0] for h in ({}, {"Authorization": "Bearer secret"})] == [401, 200])
            check("with a key any host", answers(s.port, head("/health", CLOSE, "GET", host="models.example")).startswith(b"HTTP/1.1 200 "))
            check("without it nothing is read", answers(s.port, CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n").startswith(b"HTTP/1.1 401 "))

finish()
