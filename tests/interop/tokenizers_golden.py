#!/usr/bin/env python3
"""Golden cases of tokenizers, made and checked with Hugging Face's `tokenizers` package (made with 0.23.3).

  tokenizers_golden.py check FOLDER        the package gives the ids and texts of the golden files (FOLDER: tests/golden/tokenizer of the extension)
  tokenizers_golden.py make FOLDER TEXT    trains six small tokenizers on the text (tiny Shakespeare), and writes them with their cases

FOLDER/NAME/tokenizer.json are the tokenizers, FOLDER/cases.json.gz what they give. Needs `pip install tokenizers`; without it exit code
77 (skipped); $PYTHON names another interpreter to look for it in. The C++ side of the comparison is extensions/hugging_face/tests/tokenizer_golden_test.cpp.
"""
import gzip
import json
import pathlib
import random
import sys
import unicodedata

from checks import need

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NAMES = ["gpt2", "llama3", "qwen2", "sp_prepend", "sp_metaspace", "sp_unknown"]

STRINGS = """
The quick brown fox jumps over the lazy dog.|Grüße aus München, schöne Straße!|L'été dernier, où êtes-vous allés ?|¿Dónde está la biblioteca?
Съешь же ещё этих мягких французских булок|Το γρήγορο καφέ αλεπού|שלום עולם, מה שלומך?|مرحبا بالعالم ١٢٣|नमस्ते दुनिया १२३|สวัสดีชาวโลก|Xin chào thế giới
你好，世界！今天天气怎么样？|こんにちは世界、カタカナとひらがな|안녕하세요 세계|각각 힣 ㄱㅏ|𠀀𠀁 rare ideographs 𡃁|👩‍👩‍👧‍👦 family 🇩🇪 flag 👍🏽|🙂🙃 ¯\\_(ツ)_/¯
x = [i**2 for i in range(10)]  # squares|int main() { return 0; }\\n|\\tif (a != b) {\\n\\t\\treturn a->b;\\n\\t}\\n|http://example.com/?q=1&r=2#top|user@example.org|3.14159 1,000,000 1e-5 0xFF
don't WE'LL I'd they've IT'S 'Re 'VE 'M o'clock|'ſ 'S 's ' s|I'M'VE'll'lL'D|''s '''t|½ ² ٣ ४ Ⅷ ① 1234567890123|e\u0301 \u00e9 A\u030a \u212b \u1e69 s\u0323\u0307 s\u0307\u0323
\u1100\u1161\u11a8 \uac00\u11a8 \uac01|\ufb01 \u017f \u2126 \uf900 \u0958 \u0915\u093c|a\u0300\u0301\u0302b\u0327\u0301|\u0301abc \u0344 \u0340|a\u00a0b\u2003c\u3000d\u2028e\u0085f\u200bg|\ufeffBOM
 leading|  two leading|trailing |trailing  |a  b   c    d|\\n\\n\\n|\\r\\n\\r\\n x|\\n  \\n  y|\\t \\t z|   | |.|a|▁|▁▁ ▁a|a▁b ▁ c|_a__b_|!!!???...|!\\n\\n?\\r\\n|#\\n|<0x0A>|<0xC3>|<unk>|<s|</s|<|endoftext|"""

TOKENS = ["<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<mask>", "<s>", "</s>", "<unk>", "<trim>", "<same>"]
PIECES = ["a", "b", "the", " the", "The", " ", "  ", "   ", "\n", "\r\n", "\t", "1", "23", "4567", "'", "'s", "'LL", "'ſ", ".", "!!", ",", "é", "e\u0301", "ß", "你好", "안", "\u1112\u1161\u11ab", "🙂",
          "\u00a0", "\u3000", "\u0301", "\u0323", "½", "٣", "▁", "_", "-", "(", "Ω", "\u212b", "\u200d", "\0", "\u0085", "क़", "нет"]


def strings(text):
    draw = random.Random(20)
    made = [s.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for line in STRINGS.strip("\n").split("\n") for s in line.split("|")]
    made += ["", "<|endoftext|>", "a</s>hello", " hello", "hello world", "é", "unreachable words", "Lockstep lockstep"]
    lines = [line for line in text.split("\n") if line]
    made += [draw.choice(lines)[:60] for _ in range(450)]
    while len(made) < 1150:
        start = draw.randrange(len(text) - 100)
        made.append(text[start:start + draw.randrange(1, 60)])
    while len(made) < 1700:
        made.append("".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 14))))
    while len(made) < 2000:  # includes texts that may contain special tokens
        made.append("".join(draw.choice(TOKENS + PIECES[:12]) for _ in range(draw.randrange(1, 9))))
    return made


def train_byte_level(T, text, vocab, specials, split, ignore_merges=False):
    from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

    t = T(models.BPE(ignore_merges=ignore_merges))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    t.pre_tokenizer = plain if split is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated", False), plain])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(specials)
    return t


def train_sentencepiece(T, text, vocab, byte_fallback):
    """The JSON of a tokenizer trained word by word like SentencePiece; afterwards words are removed and runs of spaces
    added.
    """
    from tokenizers import models, pre_tokenizers, trainers

    t = T(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * byte_fallback
    alphabet = sorted({c for line in text for c in line if c != " "}, key=lambda c: -sum(line.count(c) for line in text))[:70]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=vocab, special_tokens=first, limit_alphabet=len(alphabet) + 1, show_progress=False))
    made = json.loads(t.to_str())
    made["added_tokens"] = made["added_tokens"][:3]
    for a, b in [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁")]:
        made["model"]["merges"].append([a, b])
        made["model"]["vocab"][a + b] = len(made["model"]["vocab"])
    decode = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    made["decoder"] = {"type": "Sequence", "decoders": decode if byte_fallback else [decode[0], *decode[2:]]}
    made["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return made


def added(id, content, **flags):
    return dict({"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}, **flags)


def train(text):
    """{name: JSON of a tokenizer}."""
    from tokenizers import Tokenizer as T

    lines = [line + "\n" for line in text.split("\n")] + strings(text)[:90] * 4
    made = {"gpt2": json.loads(train_byte_level(T, lines, 700, ["<|endoftext|>"], None).to_str())}

    llama = json.loads(train_byte_level(T, lines, 800, ["<|begin_of_text|>", "<|eot_id|>"], LLAMA3, True).to_str())
    # Adds words that are tokens which no merge produces.
    drop = {a + b for a, b in llama["model"]["merges"][-60:]}
    llama["model"]["merges"] = [m for m in llama["model"]["merges"][:-60] if not drop & {m[0], m[1]}]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [llama["added_tokens"][0]["id"]], "tokens": ["<|begin_of_text|>"]}}}
    llama["post_processor"] = {"type": "Sequence", "processors": [llama["post_processor"], template]}
    made["llama3"] = llama

    qwen = json.loads(train_byte_level(T, lines, 650, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], QWEN2).to_str())
    qwen["normalizer"] = {"type": "NFC"}
    last = max(token["id"] for token in qwen["added_tokens"])
    qwen["added_tokens"] += [added(last + 1, "<tool_call>", normalized=True), added(last + 2, "<mask>", lstrip=True, special=True), added(last + 3, "<trim>", lstrip=True, rstrip=True)]
    made["qwen2"] = qwen

    prepend = train_sentencepiece(T, lines, 650, True)
    prepend["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    prepend["pre_tokenizer"] = None
    size = len(prepend["model"]["vocab"])
    prepend["added_tokens"] += [added(size, "<same>", normalized=True), added(size + 1, "<mask>", rstrip=True, special=True)]
    made["sp_prepend"] = prepend

    metaspace = train_sentencepiece(T, lines, 600, True)
    metaspace["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    metaspace["added_tokens"] += [added(len(metaspace["model"]["vocab"]), "<trim>", lstrip=True, rstrip=True)]
    made["sp_metaspace"] = metaspace

    made["sp_unknown"] = train_sentencepiece(T, lines, 350, False)
    return made


def has_uniform_runs(ids, table):
    """True if no run of byte tokens mixes whole characters and incomplete ones: there `tokenizers` gives up on the
    whole run, and we do not.
    """
    runs, run = [], b""
    for id in ids:
        if id in table:
            run += bytes([table[id]])
        else:
            runs, run = runs + [run], b""
    for run in runs + [run]:
        text = run.decode(errors="replace")
        if "\ufffd" in text and text.strip("\ufffd"):
            return False
    return True


def ids_to_decode(tokenizer, name):
    """Lists of ids that no text encodes to: incomplete characters, special tokens, everything in random order."""
    draw = random.Random(name)
    table = {} if not name.startswith("sp_") else {id: int(t[3:5], 16) for t, id in tokenizer.get_vocab().items() if len(t) == 6 and t.startswith("<0x")}
    lists = []
    while len(lists) < 150:
        size, limit = draw.randrange(1, 12), tokenizer.get_vocab_size()
        ids = [draw.randrange(min(limit, 260) if draw.random() < 0.5 else limit) for _ in range(size)]
        if has_uniform_runs(ids, table):
            lists.append(ids)
    return lists


def cases(tokenizer, texts, name):
    """Rows of texts: their ids, and the decoded text if it differs. Even rows add special tokens; odd rows keep special
    tokens in decoded texts.
    """
    def encode(text, row, parse):
        tokenizer.encode_special_tokens = not parse
        return tokenizer.encode(text, add_special_tokens=row % 2 == 0).ids

    ids = [encode(text, row, False) for row, text in enumerate(texts)]
    parsed = {row: encode(text, row, True) for row, text in enumerate(texts)}
    parsed = {str(row): found for row, found in parsed.items() if found != ids[row]}
    decode = lambda ids, row: tokenizer.decode(ids, skip_special_tokens=row % 2 == 0)  # noqa: E731
    decoded = {str(row): decode(found, row) for row, found in enumerate(ids) if decode(found, row) != texts[row]}
    parsed_decoded = {row: decode(found, int(row)) for row, found in parsed.items()}
    any_ids = ids_to_decode(tokenizer, name)
    return {"ids": ids, "decoded": decoded, "parsed": parsed, "parsed_decoded": parsed_decoded, "any_ids": any_ids, "any_decoded": [decode(i, row) for row, i in enumerate(any_ids)]}


def all_cases(folder, texts):
    from tokenizers import Tokenizer

    return {name: cases(Tokenizer.from_file(str(folder / name / "tokenizer.json")), texts, name) for name in NAMES}


def main(command, folder, text=None):
    need("tokenizers")
    folder = pathlib.Path(folder)
    packed = folder / "cases.json.gz"
    if command == "make":
        text = pathlib.Path(text).read_text()
        for name, tokenizer in train(text).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
        texts = strings(text)
        made = {"unicode": unicodedata.unidata_version, "texts": texts, "tokenizers": all_cases(folder, texts)}
        packed.write_bytes(gzip.compress(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0))
        print(f"{len(texts)} texts, {packed.stat().st_size} bytes of cases")
        return 0
    golden = json.loads(gzip.decompress(packed.read_bytes()))
    found, failed = all_cases(folder, golden["texts"]), 0
    for name, want in golden["tokenizers"].items():
        for key, rows in want.items():
            if found[name][key] != rows:
                failed += 1
                print(f"{name}: {key} differ from what this version of tokenizers gives")
    print(f"{6 * len(NAMES) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("check", "make"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
