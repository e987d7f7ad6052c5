#!/usr/bin/env python3
"""Damaged and foreign model folders, and invalid calls: gpt exits with one line that names the problem, before it
generates text.

tests/gpt_damage.py BUILD_FOLDER          ends with "N passed, N failed"
"""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import struct
import tempfile

from programs import check, finish, run, works

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "extensions/hugging_face/tests/golden"
CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=655, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=24, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e4))


def shapes():
    yield "model.embed_tokens.weight", (655, 16)
    for n in range(2):
        for name, shape in dict(input_layernorm=(16,), post_attention_layernorm=(16,)).items():
            yield f"model.layers.{n}.{name}.weight", shape
        for name, shape in dict(q_proj=(16, 16), k_proj=(8, 16), v_proj=(8, 16), o_proj=(16, 16)).items():
            yield f"model.layers.{n}.self_attn.{name}.weight", shape
        for name, shape in dict(gate_proj=(24, 16), up_proj=(24, 16), down_proj=(16, 24)).items():
            yield f"model.layers.{n}.mlp.{name}.weight", shape
    yield "model.norm.weight", (16,)
    yield "lm_head.weight", (655, 16)


draw = random.Random(1)
WEIGHTS = {}
for name, shape in shapes():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    WEIGHTS[name] = ("F32", shape, struct.pack(f"<{count}f", *(1.0 if len(shape) == 1 else draw.gauss(0, 0.1) for _ in range(count))))


def tensors(weights, **header):
    """The bytes of a safetensors file."""
    at, entries, data = 0, dict(header), []
    for name, (dtype, shape, raw) in weights.items():
        entries[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + len(raw)])
        at += len(raw)
        data.append(raw)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def config(**changes):
    return lambda d: (d / "config.json").write_text(json.dumps({k: v for k, v in {**CONFIG, **changes}.items() if v != "-"}))


def rope(**changes):
    return config(rope_parameters={**CONFIG["rope_parameters"], **changes})


def write(name, content):
    return lambda d: (d / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def remove(name):
    return lambda d: (d / name).unlink()


def weights(**changes):
    """A change of tensors by name, with - in place of dots; None removes a tensor."""
    def damage(d):
        all_ = dict(WEIGHTS)
        for name, value in changes.items():
            name = name.replace("-", ".")
            if value is None:
                del all_[name]
            else:
                all_[name] = value(all_.get(name))
        (d / "model.safetensors").write_bytes(tensors(all_))
    return damage


def raw(change):
    return lambda d: (d / "model.safetensors").write_bytes(change((d / "model.safetensors").read_bytes()))


def header(change):
    def damage(d):
        file = (d / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", file[:8])[0]
        entries = json.loads(file[8:8 + size])
        change(entries)
        text = json.dumps(entries).encode()
        (d / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + file[8 + size:])
    return damage


def index(change=lambda index: None, shard=lambda data: data, text=None):
    """A change that splits the weights into two shards with an index."""
    def damage(d):
        names = list(WEIGHTS)
        parts = {"model-00001-of-00002.safetensors": names[:8], "model-00002-of-00002.safetensors": names[8:]}
        fields = dict(metadata=dict(total_size=1), weight_map={n: file for file, own in parts.items() for n in own})
        for file, own in parts.items():
            (d / file).write_bytes(tensors({n: WEIGHTS[n] for n in own}))
        (d / "model.safetensors").unlink()
        change(fields)
        last = d / "model-00002-of-00002.safetensors"
        data = shard(last.read_bytes())
        last.unlink() if data is None else last.write_bytes(data)
        (d / "model.safetensors.index.json").write_text(json.dumps(fields) if text is None else text)
    return damage


def tokenizer(change, of="sp_prepend"):
    def damage(d):
        fields = json.loads((GOLDEN / "tokenizer" / of / "tokenizer.json").read_text())
        fields = change(fields) or fields
        (d / "tokenizer.json").write_text(json.dumps(fields))
    return damage


def put(path, value):
    """Sets fields[a][b]... in tokenizer.json."""
    def change(fields):
        *way, last = path
        for key in way:
            fields = fields[key]
        fields[last] = value
    return change


def move(d, name, to):
    (d / name).rename(d / to)


NAN, INF = (lambda old: ("F32", old[1], struct.pack("<f", float(x)) * (len(old[2]) // 4)) for x in ("nan", "inf"))
LONG = ",".join(["5"] * 25)
SAMPLE = ["sample", "FOLDER", "--prompt", "the quick fox", "--tokens", "3", "--greedy"]
IDS = ["sample", "FOLDER", "--ids", "5,6,7", "--tokens", "3", "--greedy"]


def sample(*more):
    return [*SAMPLE, *more]


def nothing(d):
    pass


# (name, change of the folder, required part of the message, call)
ROWS = [
    # config.json
    ("no config.json", remove("config.json"), "config.json"),
    ("an empty one", write("config.json", ""), "config.json"),
    ("half of one", write("config.json", json.dumps(CONFIG)[:100]), "config.json"),
    ("a list", write("config.json", "[1, 2]"), "config.json"),
    ("a number that JSON has not", write("config.json", json.dumps(CONFIG).replace("1e-05", "NaN")), "config.json"),
    ("not UTF-8", write("config.json", json.dumps(CONFIG).encode().replace(b"silu", b"\xff\xfe")), "config.json"),
    ("a key twice", write("config.json", json.dumps(CONFIG).replace("{", '{"hidden_size": 16, ', 1)), "hidden_size"),
    ("nested too deep", write("config.json", '{"a":' * 5000 + "1" + "}" * 5000), "config.json"),
    ("another model_type", config(model_type="bert"), "model_type"),
    ("no model_type", config(model_type="-"), "transformer.wte.weight"),
    ("a vision model", config(model_type="llava", vision_config={}), "model_type"),
    ("hidden_size as a word", config(hidden_size="16"), "hidden_size"),
    ("hidden_size 0", config(hidden_size=0), "hidden_size"),
    ("hidden_size below 0", config(hidden_size=-16), "hidden_size"),
    ("hidden_size 10^12", config(hidden_size=10**12), "hidden_size"),
    ("no hidden_size", config(hidden_size="-"), "(655, 4096)"),
    ("heads that do not divide", config(num_attention_heads=3), "heads"),
    ("key heads that do not divide", config(num_key_value_heads=3), "num_key_value_heads"),
    ("an odd head_dim", config(head_dim=3), "head"),
    ("fewer layers than weights", config(num_hidden_layers=1), "model.layers.1"),
    ("more layers than weights", config(num_hidden_layers=3), "model.layers.2"),
    ("10^9 layers", config(num_hidden_layers=10**9), "num_hidden_layers"),
    ("another vocabulary", config(vocab_size=654), "model.embed_tokens.weight"),
    ("another width of the MLP", config(intermediate_size=25), "mlp"),
    ("another activation", config(hidden_act="relu"), "hidden_act"),
    ("no context", config(max_position_embeddings=0), "max_position_embeddings"),
    ("eps as a word", config(rms_norm_eps="small"), "rms_norm_eps"),
    ("eps below 0", config(rms_norm_eps=-1), "rms_norm_eps"),
    ("tied as a word", config(tie_word_embeddings="yes"), "tie_word_embeddings"),
    ("an unknown rope_type", rope(rope_type="spiral"), "spiral"),
    ("a rope_type without its factor", rope(rope_type="linear"), "factor"),
    ("a factor of 0", rope(rope_type="linear", factor=0), "factor"),
    ("rope_theta 0", rope(rope_theta=0), "base > 1"),
    ("rope_theta as a word", rope(rope_theta="big"), "rope_theta"),
    ("quantised weights of another kind", config(quantization_config=dict(quant_method="gptq", bits=4)), "quantization_config"),
    ("a window below nothing", config(model_type="mistral", sliding_window=-4), "sliding_window"),
    ("a window as a word", config(model_type="mistral", sliding_window="wide"), "sliding_window"),
    # Weights.
    ("no weights", remove("model.safetensors"), "model.safetensors"),
    ("pickled weights only", lambda d: move(d, "model.safetensors", "pytorch_model.bin"), "safetensors"),
    ("an empty file", raw(lambda f: b""), "model.safetensors"),
    ("7 bytes", raw(lambda f: f[:7]), "model.safetensors"),
    ("half a header", raw(lambda f: f[:100]), "model.safetensors"),
    ("half the data", raw(lambda f: f[:len(f) // 2]), "model.safetensors"),
    ("a byte more", raw(lambda f: f + b"x"), "model.safetensors"),
    ("a header of 2^63 bytes", raw(lambda f: struct.pack("<Q", 2**63) + f[8:]), "model.safetensors"),
    ("a header that is no JSON", raw(lambda f: f[:8] + b"x" * (len(f) - 8)), "model.safetensors"),
    ("a folder in place of the file", lambda d: (remove("model.safetensors")(d), (d / "model.safetensors").mkdir()), "model.safetensors"),
    ("overlapping tensors", header(lambda e: e["model.norm.weight"].update(data_offsets=e["lm_head.weight"]["data_offsets"])), "model.safetensors"),
    ("an offset behind the end", header(lambda e: e["lm_head.weight"].update(data_offsets=[0, 2**40])), "model.safetensors"),
    ("a shape below 0", header(lambda e: e["model.norm.weight"].update(shape=[-16])), "model.safetensors"),
    ("a shape that overflows", header(lambda e: e["model.norm.weight"].update(shape=[2**40, 2**40])), "model.safetensors"),
    ("an unknown dtype", header(lambda e: e["model.norm.weight"].update(dtype="F31")), "F31"),
    ("whole numbers", weights(**{"model-norm-weight": lambda old: ("I32", *old[1:])}), "model.norm.weight"),
    ("a wrong shape", weights(**{"model-norm-weight": lambda old: ("F32", (15,), old[2][:60])}), "model.norm.weight"),
    ("turned over", weights(**{"model-embed_tokens-weight": lambda old: ("F32", (16, 655), old[2])}), "model.embed_tokens.weight"),
    ("a tensor less", weights(**{"model-norm-weight": None}), "model.norm.weight"),
    ("a tensor more", weights(**{"model-extra-weight": lambda old: ("F32", (1,), b"\0" * 4)}), "model.extra.weight"),
    ("a shard less", index(shard=lambda data: None), "model-00002-of-00002.safetensors"),
    ("half a shard", index(shard=lambda data: data[:len(data) // 2]), "model-00002-of-00002.safetensors"),
    ("an index outside of the folder", index(lambda i: i["weight_map"].update({"model.norm.weight": "../model.safetensors"})), "../model.safetensors"),
    ("an index from the root", index(lambda i: i["weight_map"].update({"model.norm.weight": "/etc/passwd"})), "/etc/passwd"),
    ("an index to another shard", index(lambda i: i["weight_map"].update({"model.norm.weight": "model-00001-of-00002.safetensors"})), "model.norm.weight"),
    ("an index without names", index(lambda i: i.pop("weight_map")), "weight_map"),
    ("an index that is no JSON", index(text="{"), "model.safetensors.index.json"),
    ("NaN in the weights", weights(**{"model-norm-weight": NAN}), "not numbers"),
    ("infinity in the weights", weights(**{"lm_head-weight": INF}), "not numbers"),
    # Tokenizers.
    ("no tokenizer", remove("tokenizer.json"), "tokenizer"),
    ("SentencePiece's only", lambda d: move(d, "tokenizer.json", "tokenizer.model"), "tokenizer.model"),
    ("half a tokenizer.json", write("tokenizer.json", '{"version": "1.0", "model"'), "tokenizer.json"),
    ("Unigram", tokenizer(put(["model", "type"], "Unigram")), "Unigram"),
    ("no vocab", tokenizer(lambda t: t["model"].pop("vocab") and None), "vocab"),
    ("an id below 0", tokenizer(put(["model", "vocab", "e"], -1)), "tokenizer.json"),
    ("an id of 2^31", tokenizer(put(["model", "vocab", "e"], 2**31)), "tokenizer.json"),
    ("an id twice", tokenizer(put(["model", "vocab", "e"], 70)), "tokenizer.json"),
    ("an id as a word", tokenizer(put(["model", "vocab", "e"], "70")), "tokenizer.json"),
    ("a merge of unknown words", tokenizer(lambda t: t["model"]["merges"].append(["qqq", "zzz"])), "qqq"),
    ("a merge to an unknown word", tokenizer(lambda t: t["model"]["merges"].append(["e", "e"]) if "ee" not in t["model"]["vocab"] else t["model"]["merges"].append(["e", "q"])), "merge"),
    ("a merge of three", tokenizer(lambda t: t["model"]["merges"].append(["e", "e", "e"])), "merge"),
    ("a cycle of merges", tokenizer(lambda t: t["model"]["merges"].append(["", "e"])), "merge"),
    ("an unknown normalizer", tokenizer(put(["normalizer"], dict(type="Lowercase"))), "Lowercase"),
    ("an unknown regex", tokenizer(put(["pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"], "(a+)+$"), "llama3"), "(a+)+$"),
    ("an unknown post_processor", tokenizer(put(["post_processor"], dict(type="BertProcessing"))), "BertProcessing"),
    ("an added token with no id", tokenizer(lambda t: t["added_tokens"][0].pop("id") and None), "added_tokens"),
    ("an empty added token", tokenizer(put(["added_tokens", 0, "content"], "")), "added_tokens"),
    ("an id that the model has not, in the tokenizer", tokenizer(lambda t: t["model"]["vocab"].update({word: id + 5000 for word, id in t["model"]["vocab"].items() if id >= 300})), "5"),
    # Calls.
    ("no folder", lambda d: shutil.rmtree(d), "FOLDER"),
    ("a file in place of the folder", lambda d: (shutil.rmtree(d), d.write_text("x")), "FOLDER"),
    ("--top-p 0", nothing, "top", sample("--top-p", "0")),
    ("--top-p 1.5", nothing, "--top-p", sample("--top-p", "1.5")),
    ("--top-p nan", nothing, "--top-p", sample("--top-p", "nan")),
    ("--top-k -1", nothing, "--top-k", sample("--top-k", "-1")),
    ("--temperature -1", nothing, "--temperature", sample("--temperature", "-1")),
    ("--temperature inf", nothing, "--temperature", sample("--temperature", "inf")),
    ("--tokens 0", nothing, "--tokens", sample("--tokens", "0")),
    ("--repetition-penalty 0", nothing, "--repetition-penalty", sample("--repetition-penalty", "0")),
    ("--stop nothing", nothing, "stop", sample("--stop", "")),
    ("an id that the model has not", nothing, "655", ["sample", "FOLDER", "--ids", "5,655", "--greedy"]),
    ("an id below 0", nothing, "-1", ["sample", "FOLDER", "--ids", "5,-1", "--greedy"]),
    ("an id that is none", nothing, "five", ["sample", "FOLDER", "--ids", "five", "--greedy"]),
    ("ids longer than the context, for logits", nothing, "24", ["logits", "FOLDER", "--ids", LONG, "--to", "/dev/null"]),
    ("ids longer than the context, for beams", nothing, "24", ["sample", "FOLDER", "--ids", LONG, "--beams", "2"]),
    ("logits into no folder", nothing, "none/x.safetensors", ["logits", "FOLDER", "--ids", "5", "--to", "FOLDER/none/x.safetensors"]),
    ("an empty text to evaluate", write("text.txt", ""), "text", ["eval", "FOLDER", "--text", "FOLDER/text.txt"]),
    ("an unknown option", nothing, "--temperature", sample("--temprature", "1")),
    ("an unknown device", nothing, "tpu", sample("--device", "tpu")),
]


def end_of(row):
    name, damage, expected, *call = row
    with tempfile.TemporaryDirectory() as folder:
        d = pathlib.Path(folder) / "model"
        d.mkdir()
        (d / "config.json").write_text(json.dumps(CONFIG))
        (d / "model.safetensors").write_bytes(FILE)
        shutil.copy(GOLDEN / "tokenizer/sp_prepend/tokenizer.json", d)
        damage(d)
        r = run("gpt", *(word.replace("FOLDER", str(d)) for word in (call[0] if call else SAMPLE)), timeout=20)
        lines = [line for line in r.stderr.splitlines() if not line.startswith("see: ")]
        good = r.returncode in (1, 2) and len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 600 and expected.replace("FOLDER", str(d)).lower() in lines[0].lower() and r.stdout == ""
        return name, good, f"expected one line with {expected!r}, got exit {r.returncode}:\n{r.stderr[:1500]}{r.stdout[:200]}"


FILE = tensors(WEIGHTS)
full = end_of(("the folder as it is", nothing, "", SAMPLE))
check("the folder as it is", "got exit 0" in full[2], full[2])
check("in shards", "got exit 0" in end_of(("in shards", index(), ""))[2])
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for outcome in pool.map(end_of, ROWS):
        check(*outcome)

# A word of 4 MB is tokenized quickly.
with tempfile.TemporaryDirectory() as folder:
    d = pathlib.Path(folder)
    (d / "config.json").write_text(json.dumps(CONFIG))
    (d / "model.safetensors").write_bytes(FILE)
    shutil.copy(GOLDEN / "tokenizer/sp_prepend/tokenizer.json", d)
    (d / "word.txt").write_text("abcdefg" * 600_000)
    works("a long word", ["gpt", "finetune", "--model_name_or_path", d, "--do_train", "--train_file", d / "word.txt", "--max_steps", 1, "--json"], timeout=20)
finish()
