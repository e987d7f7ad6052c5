#!/usr/bin/env python3
"""gpt serve over HTTP: the texts of gpt sample, the same for concurrent clients, streams, rejected requests, clients
that disconnect.

tests/gpt_serve.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import concurrent.futures
import http.client
import json
import pathlib
import random
import shutil
import socket
import struct

from programs import check, finish, refused, run, workplace, works
from serving import Server


def llama(folder, rows, kind="F32", scale=0.2, head=None):
    """A small Llama with random weights for the 656 tokens of the golden tokenizer of Qwen 2. head: the value of all
    elements in row 70 of its head.
    """
    draw, at, entries, data = random.Random(1), 0, {}, b""
    shapes = {"model.embed_tokens": (rows, 16), "model.norm": (16,), "lm_head": (rows, 16), "model.layers.0.input_layernorm": (16,), "model.layers.0.post_attention_layernorm": (16,)}
    shapes |= {f"model.layers.0.{name}_proj": shape for name, shape in {"self_attn.q": (16, 16), "self_attn.k": (16, 16), "self_attn.v": (16, 16), "self_attn.o": (16, 16), "mlp.gate": (24, 16), "mlp.up": (24, 16), "mlp.down": (16, 24)}.items()}
    for name, shape in shapes.items():
        values = [1.0 if len(shape) == 1 else draw.gauss(0, scale) for _ in range(shape[0] * (shape[1] if len(shape) > 1 else 1))]
        if name == "lm_head" and head:
            values[70 * 16:71 * 16] = [head, -head] * 8
        raw = struct.pack(f"<{len(values)}{'f' if kind == 'F32' else 'e'}", *values)
        entries[name + ".weight"] = dict(dtype=kind, shape=list(shape), data_offsets=[at, at + len(raw)])
        at, data = at + len(raw), data + raw
    folder.mkdir()
    text = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=rows, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
                                                        hidden_act="silu", tie_word_embeddings=False, rope_theta=1e4, eos_token_id=None, torch_dtype="float32" if kind == "F32" else "float16")))
    shutil.copy(pathlib.Path(__file__).resolve().parents[1] / "extensions/hugging_face/tests/golden/tokenizer/qwen2/tokenizer.json", folder)
    return folder


with workplace(1000) as (d, text):
    works("train", ["gpt", "train", "--text", text, "--model", "gpt:2x32x2", "--context", 2048, "--batch", 1, "--steps", 4, "--warmup", 1, "--lr", 0.01, "--eval-batches", 1, "--out", d / "run", "--export", d / "folder"])

    with Server(d / "run", "--name", "m", "--template", "plain", "--blocks", 300) as s:
        check("health", s.ask("GET", "/health") == (200, {"status": "ok"}))
        check("models", s.ask("GET", "/v1/models")[1]["data"][0]["id"] == "m")
        check("a model by its name", s.ask("GET", "/v1/models/m")[1] == s.ask("GET", "/v1/models")[1]["data"][0] and s.ask("GET", "/v1/models/gpt-4")[0] == 404)
        check("no other pages", s.ask("OPTIONS", "/v1/completions")[0] == 404)
        check("tokenize", s.ask("POST", "/tokenize", {"prompt": "abc"}) == (200, {"tokens": [97, 98, 99], "count": 3, "max_model_len": 2048}))

        # The same text as from gpt sample.
        sampled = run("gpt", "sample", d / "run", "--prompt", "the ", "--tokens", 40, "--greedy").stdout
        said = s.complete(model="m", max_tokens=40, temperature=0)
        check("the text of gpt sample", sampled == "the " + said["choices"][0]["text"] + "\n", f"{sampled!r}\n{said}")
        check("usage", said["usage"] == {"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44} and said["choices"][0]["finish_reason"] == "length", str(said))
        check("fields that ask for nothing", s.complete(max_tokens=40.0, temperature=0, best_of=1, top_k=-1, tools=[], response_format={"type": "text"}, logit_bias={})["choices"] == said["choices"])
        check("ids", s.text([116, 104, 101, 32], max_tokens=40, temperature=0) == said["choices"][0]["text"])
        check("echo", s.text(max_tokens=3, temperature=0, echo=True).startswith("the "))
        check("no seed, other draws", s.text(max_tokens=30, temperature=3) != s.text(max_tokens=30, temperature=3))
        two = [c["text"] for c in s.complete(max_tokens=20, temperature=2, n=2, seed=5)["choices"]]
        check("n: draws of their own", two[0] != two[1] and two == [c["text"] for c in s.complete(max_tokens=20, temperature=2, n=2, seed=5)["choices"]], str(two))
        full = s.text(max_tokens=40, temperature=2, seed=9)
        ends = next(full[i:i + 2] for i in range(8, len(full)) if full[i:i + 2].isascii())
        stopped = s.complete(max_tokens=40, temperature=2, seed=9, stop=["never", ends])["choices"][0]
        check("stop", stopped["text"] == full[:full.index(ends)] and stopped["finish_reason"] == "stop", str(stopped))

        # Log probabilities, as lm-eval requests them.
        scored = s.complete("the quick", max_tokens=0, echo=True, logprobs=2)["choices"][0]
        values = scored["logprobs"]["token_logprobs"]
        check("echo with logprobs", scored["text"] == "the quick" and len(values) == 9 and values[0] is None and all(v < 0 for v in values[1:]) and len(scored["logprobs"]["top_logprobs"][1]) == 2, str(scored))

        # Streams deliver the same in pieces.
        ask = dict(prompt="dog", max_tokens=50, temperature=1.5, seed=3, logprobs=0)
        pieces = s.events("/v1/completions", ask)
        single = s.complete(**ask)["choices"][0]
        check("stream", "".join(p["choices"][0]["text"] for p in pieces) == single["text"] and pieces[-1]["choices"][0]["finish_reason"] == "length", str(pieces[-1:]))
        check("stream of logprobs", sum((p["choices"][0]["logprobs"]["token_logprobs"] for p in pieces), []) == single["logprobs"]["token_logprobs"])
        chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 1}
        status, said = s.ask("POST", "/v1/chat/completions", chat)
        pieces = s.events("/v1/chat/completions", chat)
        check("chat", status == 200 and said["choices"][0]["message"]["role"] == "assistant" and said["usage"]["prompt_tokens"] == len("System: Be kind.\nUser: hi\nAssistant:"), str(said))
        check("chat as a stream", pieces[0]["choices"][0]["delta"]["role"] == "assistant" and "".join(p["choices"][0]["delta"].get("content", "") for p in pieces) == said["choices"][0]["message"]["content"], str(pieces))

        # 32 concurrent requests: each gets the same bytes as alone.
        asks = [dict(prompt="the quick brown fox "[: 3 + i % 17] * (1 + i % 9), max_tokens=10 + i, temperature=(0, 1, 2)[i % 3], top_p=0.9, seed=i, logprobs=i % 3) for i in range(32)]
        single = [s.complete(**a)["choices"] for a in asks]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            together = list(pool.map(lambda a: s.complete(**a)["choices"], asks))
        check("32 at once, the same bytes", together == single, str([i for i in range(32) if together[i] != single[i]]))

        # A client that disconnects frees its blocks, with a stream and without. A text may end before the server sees that
        # its client has left; then another client leaves.
        def leave(stream):
            before = s.figures()["requests_cancelled_total"]
            gone = socket.create_connection(("127.0.0.1", s.port))
            body = json.dumps({"prompt": "x", "max_tokens": 2000, "n": 4, "stream": stream})
            gone.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            s.until("it runs", lambda f: f["requests_running"] > 0 and f["blocks_used"] > 0)
            gone.close()
            s.until("its blocks are free", lambda f: f["blocks_used"] == 0 and f["requests_running"] == 0)
            return s.figures()["requests_cancelled_total"] > before  # each of the four texts counts
        for stream in (True, False):
            check("a client that left is counted" + " (stream)" * stream, any(leave(stream) for _ in range(10)))

        # Errors name the field.
        for name, status, param, body in (("unknown field", 400, "best_of", {"prompt": "x", "best_of": 2}), ("no JSON", 400, None, "{"), ("depth", 400, None, '{"user":' + "[" * 40 + "]" * 40 + "}"),
                                          ("too long", 400, "prompt", {"prompt": "x" * 5000}), ("token", 400, "prompt", {"prompt": [256]}), ("other model", 404, "model", {"prompt": "x", "model": "gpt-4"}),
                                          ("body", 413, None, {"prompt": "x" * (1 << 20)})):
            got, said = s.ask("POST", "/v1/completions", body)
            check(f"refused: {name}", got == status and said["error"]["param"] == param and said["error"]["type"] == "invalid_request_error" and said["error"]["message"], f"{got} {said}")
        check("no such page", s.ask("GET", "/v2")[0] == 404)
        refused("port in use", ["gpt", "serve", d / "run", "--port", s.port], "cannot listen on")

    # A Hugging Face folder, with an API key and an unknown chat template.
    shutil.copytree(d / "folder", d / "strange")
    (d / "folder/config.json").write_text(json.dumps({**json.loads((d / "folder/config.json").read_text()), "eos_token_id": 101}))
    with Server(d / "folder", "--api-key", "secret", "--allow-origin", "http://localhost:3000") as s:
        def headers(method, **more):
            connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
            connection.request(method, "/v1/models", None, {"Origin": "http://localhost:3000", **more})
            response = connection.getresponse()
            response.read()
            return response.status, dict(response.getheaders())

        status, asked = headers("OPTIONS", **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-own"})
        check("what a browser asks before", status == 204 and asked["Access-Control-Allow-Origin"] == "http://localhost:3000" and "POST" in asked["Access-Control-Allow-Methods"] and asked["Access-Control-Allow-Headers"] == "authorization, x-own", f"{status} {asked}")
        check("the origin beside every answer", all(headers("GET", **h)[1].get("Access-Control-Allow-Origin") == "http://localhost:3000" for h in ({}, {"Authorization": "Bearer secret"})))
        check("401", [s.ask("GET", "/v1/models", None, **h)[0] for h in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secret"})] == [401, 401, 200])
        check("health is open", s.ask("GET", "/health")[0] == 200)
        status, said = s.ask("POST", "/v1/chat/completions", {"messages": []}, Authorization="Bearer secret")
        check("no template, no chat", status == 400 and "--template" in said["error"]["message"], str(said))
        status, said = s.ask("POST", "/v1/completions", {"prompt": "the ", "max_tokens": 2000, "temperature": 5, "seed": 1}, Authorization="Bearer secret")
        check("ends at the model's end token", status == 200 and "e" not in said["choices"][0]["text"] and said["choices"][0]["finish_reason"] == "stop", str(said))
    refused("an origin with a path", ["gpt", "serve", d / "run", "--allow-origin", "http://localhost/page"], "--allow-origin", "expected * or SCHEME://HOST[:PORT]", code=2)
    refused("options that do not go together, before the model is read", ["gpt", "sample", d / "none", "--beams", 2, "--stop", "x"], "stop strings with num_beams", code=2)

    # Rows of the head beyond the tokenizer's 656 ids are never sampled. If the head has a row too few, only that id is
    # rejected. A token with an infinite score is chosen.
    chat = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    with Server(llama(d / "padded", 900)) as s:
        counts = [s.ask("POST", "/tokenize", {"prompt": chat, **more})[1]["count"] for more in ({}, {"parse_special": False})]
        check("a rendered chat is tokens", counts == [14, 34], str(counts))
        asks = [dict(prompt="ab", max_tokens=50, seed=i, stop=["zzzz"], logprobs=5) for i in range(24)]
        single = [s.complete(**a)["choices"] for a in asks]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            check("no padding is drawn, beside others as alone", list(pool.map(lambda a: s.complete(**a)["choices"], asks)) == single)
    sampled = [run("gpt", "sample", d / "padded", "--prompt", "ab", "--tokens", 60, "--top-k", 0, "--temperature", 1, "--seed", i) for i in range(4)]
    check("nor by gpt sample", all(r.returncode == 0 for r in sampled), str([r.stderr for r in sampled]))
    with Server(llama(d / "bigtok", 655)) as s:
        check("a token without a row", s.text("ab", max_tokens=5) is not None and s.ask("POST", "/v1/completions", {"prompt": "a<trim>"})[0] == 400)
    for program, words in (("finetune", ["--model_name_or_path", d / "bigtok", "--do_train", "--max_steps", 1, "--block_size", 16, "--per_device_train_batch_size", 1, "--train_file"]),
                           ("train", ["--init", d / "bigtok", "--context", 16, "--batch", 1, "--steps", 1, "--warmup", 0, "--eval-batches", 1, "--text"])):
        works(f"gpt {program} with such a tokenizer", ["gpt", program, *words, text, *(["--output_dir", d / "tuned"] if program == "finetune" else [])])
        (d / "trim.txt").write_text("the quick brown fox " * 500 + "<trim>")
        refused(f"gpt {program} of a text with that token", ["gpt", program, *words, d / "trim.txt"], "trim.txt: token 655", "has no row in the model")
    with Server(llama(d / "infinite", 656, "F16", 1, 6e4)) as s:
        said = [s.ask("POST", "/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": t, "logprobs": 2}) for p in ("a", "the", "x y z") for t in (0, 1)]
        check("an infinite score", all(status == 200 or "not numbers" in str(said) for status, said in said) and s.ask("GET", "/health")[0] == 200, str(said)[:500])

    refused("template that the tokenizer has no tokens for", ["gpt", "serve", d / "run", "--template", "llama3"], "<|start_header_id|>")

    # Scores of texts, from the command line and over HTTP.
    (d / "score.jsonl").write_text("".join(json.dumps(dict(context=c, continuation=t)) + "\n" for c, t in (("the quick ", "brown"), ("the", " quick"), ("x", "yz"))))
    r = run("gpt", "score", d / "run", d / "score.jsonl")
    scores = [json.loads(line) for line in r.stdout.splitlines()]
    check("score", r.returncode == 0 and [s["tokens"] for s in scores] == [6, 6, 2] and abs(sum(values[3:]) - scores[1]["logprob"]) < 1e-9, f"{r.stdout}{r.stderr}")
    (d / "bad.jsonl").write_text('{"context": "", "continuation": "x"}\n')
    refused("score without a context", ["gpt", "score", d / "run", d / "bad.jsonl"], "bad.jsonl:1", "begins a text")
    (d / "short.txt").write_text("the quick brown fox " * 150)
    strided = [json.loads(run("gpt", "eval", d / "run", "--text", d / "short.txt", "--stride", n, "--json").stdout) for n in (2048, 700)]
    check("eval --stride", all(s["tokens"] == 2999 and s["bytes"] == 2999 for s in strided) and strided[0]["loss"] != strided[1]["loss"] and abs(strided[0]["loss"] / strided[0]["bits_per_byte"] - 0.6931471805599453) < 1e-9, str(strided))

    # The schedule without a model; the picture in extensions/serving/README.md is up to date.
    extension = pathlib.Path(__file__).resolve().parent.parent / "extensions/serving"
    words = (extension / "README.md").read_text().split("lockstep schedule serving ")[1].split("\n```")[0].replace("\\\n", " ").split()
    words[words.index("--svg") + 1] = d / "serving.svg"
    works("lockstep schedule serving", ["lockstep", "schedule", "serving", *words], lambda r: "preempted         2" in r.stdout and (d / "serving.svg").read_text() == (extension / "serving.svg").read_text())
    refused("options of serving elsewhere", ["lockstep", "schedule", "ring", "--requests", "0:1+1"], "--requests is for serving", code=2)
    refused("serving with others' options", ["lockstep", "schedule", "serving", "--requests", "0:1+1", "--stages", 2], "--stages is not for serving", code=2)

finish()
