#!/usr/bin/env python3
"""Hugging Face's folders beside the weights: tokens in files of every version, keys of config.json, and that what was saved here
means there what it meant before.

  folders.py check PATH/TO/gpt [SEED]   tokens of drawn folders are the ids of Transformers; folders of train, finetune and LoRA
                                        load there, with the ids, the chat template, the generation and the configuration
  folders.py make FILE                  transformers_keys.json: what Transformers (5.24) writes for each model

Needs transformers and tokenizers, and to load the models torch; without the first two exit code 77 (skipped). $PYTHON names another
interpreter to look for them in.
"""
import json
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile

from checks import count, need, run

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "extensions/hugging_face/tests/golden"
TOKENIZERS = GOLDEN / "tokenizer"
HUGE = 1000000000000000019884624838656  # of a tokenizer without a maximum length
SIZES = dict(vocab_size=656, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
TEMPLATE = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
NAMES = ["<|user|>", "<|bot|>", "<new>", "[PAD]", "éx", "the cat", " in", "<|user", "zz"]
PIECES = NAMES + ["the", " cat", "  ", "\n", "é", "香", "<|endoftext|>", "</s>", "<mask>", "<trim>", "<same>", "user|>", "x", "1 2", "🙂"]


def configs():
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

    gpt2 = GPT2Config(vocab_size=656, n_positions=64, n_embd=32, n_layer=3, n_head=4, bos_token_id=650, eos_token_id=652)
    ids = dict(bos_token_id=650, eos_token_id=[652, 650], pad_token_id=651)
    return {"gpt2": gpt2, "llama": LlamaConfig(**SIZES, **ids, attention_dropout=0.125), "mistral": MistralConfig(**SIZES, **ids, sliding_window=8),
            "qwen2": Qwen2Config(**SIZES, **ids, use_sliding_window=True, sliding_window=8, max_window_layers=1)}


def tokens_of(path):
    """The ids in a .tokens file (data/text.h)."""
    raw = path.read_bytes()
    width = struct.unpack_from("<I", raw, 12)[0]
    return list(struct.unpack(f"<{(len(raw) - 528) // width}{'H' if width == 2 else 'I'}", raw[512:-16]))


def draw_tokenizer(draw, folder):
    """One of the golden tokenizers, with its tokens in the files that some version of Transformers would have written.
    """
    folder.mkdir()
    name = draw.choice(["", "", "gpt2", "llama3", "qwen2", "sp_prepend", "sp_metaspace"])
    if name:
        full = json.loads((TOKENIZERS / name / "tokenizer.json").read_text())
        full["model"]["dropout"] = draw.choice([None, 0.0])
        vocab, own = full["model"]["vocab"], {t["content"]: t["id"] for t in full["added_tokens"]}
        if draw.random() < 0.4 and "é" in vocab and "é" not in own:  # an id with two meanings
            full["added_tokens"].append(flags(draw, vocab["é"], "é"))
            own["é"] = vocab["é"]
        (folder / "tokenizer.json").write_text(json.dumps(full, ensure_ascii=False))
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(TOKENIZERS / file, folder)
        vocab, own = json.loads((folder / "vocab.json").read_text()), {"<|endoftext|>": 0}
        config = {"tokenizer_class": "GPT2Tokenizer"}
    first = max([*vocab.values(), *own.values()]) + 1
    names = draw.sample(NAMES, draw.randrange(1, 6))
    if draw.random() < 0.3:  # flags of a token that is in tokenizer.json
        names = [n for n in names if n not in own] + draw.sample(sorted(own), 1)
    added, more = {}, 0
    for token in names:
        there = own.get(token, vocab.get(token))
        added[token] = first + more if there is None else there
        more += there is None
    special = draw.sample(names, draw.randrange(0, len(names) + 1))
    kind = draw.choice(["decoder", "files", "files"])
    if kind == "decoder":
        config["added_tokens_decoder"] = {str(id): {k: v for k, v in flags(draw, id, token).items() if k not in ("id", "content")} | {"content": token} for token, id in added.items()}
    else:
        (folder / "added_tokens.json").write_text(json.dumps(added))
        place = config if draw.random() < 0.3 else {}
        place["extra_special_tokens"] = special
        if draw.random() < 0.5:
            place["pad_token"] = draw.choice(names)
        if place is not config:
            (folder / "special_tokens_map.json").write_text(json.dumps(place))
    config["model_max_length"] = draw.choice([64, HUGE])
    if draw.random() < 0.5:
        config["someones_limit"] = float("inf")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def flags(draw, id, content):
    return dict(id=id, content=content, single_word=False, lstrip=draw.random() < 0.2, rstrip=draw.random() < 0.2, normalized=draw.random() < 0.5, special=draw.random() < 0.5)


def check_tokenizer(gpt, draw, folder):
    from transformers import AutoTokenizer

    draw_tokenizer(draw, folder)
    text = "\n".join("".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 9))) for _ in range(100))
    (folder / "text.txt").write_text(text)
    run(gpt, "tokenize", folder / "text.txt", "--tokenizer", folder, "--to", folder / "ids.tokens")
    ours = tokens_of(folder / "ids.tokens")
    theirs = AutoTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False).input_ids
    if ours != theirs:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        raise RuntimeError(f"ids differ from number {at} on: {ours[at - 3:at + 4]}, there {theirs[at - 3:at + 4]}; {(folder / 'tokenizer_config.json').read_text()}")
    return 0.0


def check_saved(before, after, ids):
    """Checks that `before` and `after` mean the same to Transformers."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    def differ(what, a, b, leave=()):
        for key in (a.keys() | b.keys()) - {"transformers_version", "_name_or_path", "name_or_path", *leave}:
            if a.get(key) != b.get(key):
                raise RuntimeError(f"{after.name}: {what}: {key} was {a.get(key)}, and is {b.get(key)}")

    if not (after / "adapter_config.json").exists():
        # head_dim and n_ctx with their usual values may be added, and unknown keys may be dropped.
        differ("config.json", *(AutoConfig.from_pretrained(str(f)).to_dict() for f in (before, after)), leave=("head_dim", "n_ctx", "someones_limit", "someones_count"))
        differ("generation_config.json", *(GenerationConfig.from_pretrained(str(f)).to_dict() for f in (before, after)), leave=("_from_model_config",))
    one, other = (AutoTokenizer.from_pretrained(str(f)) for f in (before, after))
    if one.chat_template != other.chat_template or one.chat_template is None or one(ids).input_ids != other(ids).input_ids or len(one) != len(other):
        raise RuntimeError(f"{after.name}: another tokenizer or template")
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    from transformers import AutoModelForCausalLM

    if not (after / "adapter_config.json").exists():
        report = AutoModelForCausalLM.from_pretrained(str(after), output_loading_info=True)[1]
        if problems := {key: sorted(names) for key, names in report.items() if names}:
            raise RuntimeError(f"Transformers says of {after.name}: {problems}")


def check_folder(gpt, name, config, work):
    base, text = work / name, "<|im_start|>user\nthe <tool_call> cat<|im_end|>"
    (work / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    base.mkdir()
    config.architectures, config.dtype = None, "float32"
    config.save_pretrained(str(base))
    shutil.copy(TOKENIZERS / "qwen2/tokenizer.json", base)
    train = [gpt, "train", "--text", work / "text.txt", "--steps", 1, "--batch", 2, "--validation", 0]
    run(*train, "--model", base / "config.json", "--tokenizer", base, "--export", work / f"{name}_weights")
    shutil.copy(work / f"{name}_weights/model.safetensors", base)
    saved = json.loads((base / "config.json").read_text())
    saved["architectures"] = json.loads((work / f"{name}_weights/config.json").read_text())["architectures"]
    saved.update(bos_token_id=650, eos_token_id=[652, 650], pad_token_id=651, someones_limit=float("inf"), someones_count=2**64)
    (base / "config.json").write_text(json.dumps(saved))
    (base / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": HUGE}))
    (base / "chat_template.jinja").write_text(TEMPLATE)
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/tool.jinja").write_text("{{ messages }}")
    (base / "generation_config.json").write_text(json.dumps(dict(bos_token_id=650, eos_token_id=[652, 650], pad_token_id=651, do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.3)))
    run(*train, "--init", base, "--context", 16, "--out", work / f"{name}_run", "--export", work / f"{name}_exported")
    run(*train, "--init", f"{base},lora=2", "--context", 16, "--export", work / f"{name}_adapter")
    run(gpt, "finetune", "--model_name_or_path", base, "--do_train", "--train_file", work / "text.txt", "--block_size", 16, "--max_steps", 1, "--output_dir", work / f"{name}_tuned")
    for after in ("exported", "adapter", "tuned"):
        check_saved(base, work / f"{name}_{after}", text)
    return 0.0


def main(command, path, seed="1"):
    need("transformers", "tokenizers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if command == "make":
        made = {name: config.to_dict() for name, config in configs().items()}
        pathlib.Path(path).write_text(json.dumps(made, indent=1) + "\n")
        return 0
    golden = json.loads((GOLDEN / "transformers_keys.json").read_text())
    draw, checks = random.Random(int(seed)), {}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for i in range(60):
            checks[f"tokens beside, {i}"] = lambda i=i: check_tokenizer(path, draw, work / f"tokens{i}")
        for name, config in configs().items():
            def keys(name=name, config=config):
                if unknown := config.to_dict().keys() - golden[name].keys():
                    raise RuntimeError(f"this Transformers writes more than transformers_keys.json has: {sorted(unknown)}")
                return 0.0
            checks[f"{name}: keys"] = keys
            checks[f"{name}: what is kept"] = lambda name=name, config=config: check_folder(path, name, config, work)
        return count(checks)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("check", "make"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
