"""gpt serve for tests: a server for the duration of a block, and requests of clients."""
import http.client
import json
import os
import signal
import subprocess
import time

from programs import APPS, check


class Server:
    """Runs gpt serve until the block ends, then sends Ctrl-C."""

    def __init__(self, *args, **variables):
        self.args = [str(APPS / "gpt"), "serve", *map(str, args), "--port", "0", "--threads", "2"]
        self.env = {**os.environ, **variables}
        self.signal = signal.SIGINT

    def __enter__(self):
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env)
        self.line = self.process.stdout.readline()
        self.port = int(self.line.rsplit("/v1", 1)[0].rsplit(":", 1)[1]) if "http" in self.line else 0
        if not self.port:
            raise RuntimeError(self.line + self.process.stderr.read())
        return self

    def __exit__(self, *_):
        begun = time.monotonic()
        self.process.send_signal(self.signal)
        out, err = self.process.communicate(timeout=30)
        check(f"{self.signal.name} ends it cleanly within 5 s", self.process.returncode == 0 and out == "ended\n" and err == "" and time.monotonic() - begun < 5, f"{self.process.returncode} after {time.monotonic() - begun:.1f} s: {out}{err}")

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if response.getheader("Content-Type") == "application/json" else text

    def complete(self, prompt="the ", **fields):
        status, said = self.ask("POST", "/v1/completions", {"prompt": prompt, **fields})
        if status != 200:
            raise RuntimeError(f"{status}: {said}")
        return said

    def text(self, *args, **fields):
        return self.complete(*args, **fields)["choices"][0]["text"]

    def figures(self):
        status, text = self.ask("GET", "/metrics")
        if status != 200 or "# TYPE lockstep_blocks_used gauge" not in text:
            raise RuntimeError(f"{status}: {text}")
        return {k.removeprefix("lockstep_"): float(v) for k, v in (line.split() for line in text.splitlines() if not line.startswith("#"))}

    def until(self, name, condition):
        """Polls the server's metrics until they meet a condition, for some seconds."""
        for _ in range(300):
            figures = self.figures()
            if condition(figures):
                return check(name, True)
            time.sleep(0.02)
        check(name, False, str(figures))

    def events(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        kind, words = response.getheader("Content-Type"), response.read().decode().split("\n\n")
        check("events", kind == "text/event-stream" and words[-2:] == ["data: [DONE]", ""] and all(w.startswith("data: ") for w in words[:-1]), str(words[-3:]))
        return [json.loads(w[6:]) for w in words[:-2]]
