// Tokenizers: the ids of Hugging Face's tokenizers library (golden/tokenizer), round trips, corrupt files. For
// the golden files, `tokenizers` 0.23.3 trained a byte-level BPE of 640 tokens.
#include <ctime>
#include <set>

#include "data/draw.h"
#include "data/json.h"
#include "extensions/hugging_face/added_tokens.h"
#include "extensions/hugging_face/bpe.h"
#include "extensions/hugging_face/tokenizer.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string folder() { return ::golden("tokenizer"); }
BpeTokenizer from_files() { return BpeTokenizer::from_files(folder() + "/vocab.json", folder() + "/merges.txt"); }

/// The bytes that the ids stand for, which need not be whole characters.
std::string bytes_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string all;
  for (const int32_t id : ids) all += tokenizer.token_bytes(id);
  return all;
}

}  // namespace

TEST_CASE("the ids of the reference, from both forms of files") {
  const auto a = from_files();
  const auto b = load_tokenizer(folder());
  CHECK(a.vocab_size() == 640);
  CHECK(b->vocab_size() == 640);
  int count = 0;
  const Json cases = read_json(folder() + "/cases.json");
  for (const Json& row : cases.as_array()) {
    const std::string& text = row.at("text").as_string();
    CAPTURE(text);
    std::vector<int32_t> want;
    for (const Json& id : row.at("ids").as_array()) want.push_back(int32_t(id.as_int()));
    CHECK(a.encode(text, {.parse_special = true}) == want);
    CHECK(b->encode(text, {.parse_special = true}) == want);
    CHECK(a.decode(want, false) == text);
    ++count;
  }
  CHECK(count > 80);
}

TEST_CASE("no byte is lost") {
  const auto tokenizer = from_files();
  const ByteTokenizer bytes;
  Draws draws({.seed = 1});
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int64_t i = draws.below(60); i >= 0; --i) text += char(draws.below(256));
    CHECK(bytes_of(tokenizer, tokenizer.encode(text)) == text);
    CHECK(bytes_of(bytes, bytes.encode(text)) == text);
  }
  const std::string long_word(200000, 'e');  // a single word: quadratic merging would take minutes
  CHECK(tokenizer.decode(tokenizer.encode(long_word)) == long_word);
  CHECK(bytes.encode("aé") == std::vector<int32_t>{97, 195, 169});
  CHECK(tokenizer.encode_tensor("the cat").dtype() == i32);
}

TEST_CASE("special tokens, and ids without a token") {
  const auto tokenizer = from_files();
  const int32_t end = tokenizer.special("<|endoftext|>");
  const auto ids = tokenizer.encode("a<|endoftext|>", {.parse_special = true});
  CHECK(ids.back() == end);
  CHECK(ids.size() == 2);
  CHECK(tokenizer.decode(ids) == "a");
  CHECK(tokenizer.decode(ids, false) == "a<|endoftext|>");
  // Special tokens in user input are encoded as plain text; in training data they are special.
  const auto typed = tokenizer.encode("a<|endoftext|>");
  CHECK(typed.size() > 4);
  CHECK(tokenizer.decode(typed) == "a<|endoftext|>");
  CHECK(tokenizer.encode_tensor("a<|endoftext|>").numel() == 2);
  CHECK(tokenizer.bos() == end);
  CHECK(tokenizer.eos() == end);
  CHECK_ERROR(tokenizer.special("<s>"), "no special token <s>; there are: <|endoftext|>");
  CHECK_ERROR(tokenizer.decode(std::vector<int32_t>{640}), "expected ids from 0 to 639, got 640");
  CHECK_ERROR(tokenizer.decode(std::vector<int32_t>{-1}), "got -1");
  CHECK_ERROR(ByteTokenizer().decode(std::vector<int32_t>{256}), "expected ids from 0 to 255, got 256");
}

TEST_CASE("tokens beside the vocabulary, in the files of every version of Transformers") {
  const std::string text = "<|user|>the cat<|bot|>the dog<|endoftext|>",
                    user = R"({"content": "<|user|>", "special": true,
    "lstrip": false, "rstrip": false, "normalized": false, "single_word": false})";
  const std::vector<int32_t> wanted{640, 84, 258, 277, 299, 641, 84, 258, 371, 71, 0};  // the ids of Transformers 5.24
  struct Row {
    const char* what;
    std::vector<std::pair<std::string, std::string>> files;
    bool special = true;  // true: <|bot|> is a special token
  };
  const Row rows[] = {
      {"added_tokens_decoder, before which nothing else counts",
       {{"tokenizer_config.json", R"({"added_tokens_decoder": {"640": )" + user +
                                      R"(, "641": {"content": "<|bot|>", "special": false}}, "model_max_length":
                                      1000000000000000019884624838656, "tokenizer_class": "GPT2Tokenizer"})"},
        {"added_tokens.json", R"({"<|user|>": 3, "the": 700})"},
        {"special_tokens_map.json", R"({"eos_token": "nothing"})"}},
       false},
      {"added_tokens.json; the map says which are special",
       {{"added_tokens.json", R"({"<|bot|>": 641, "<|user|>": 640})"},
        {"special_tokens_map.json", R"({"additional_special_tokens": ["<|user|>", {"content": "<|bot|>"}]})"}}},
      {"the configuration says it, too",
       {{"added_tokens.json", R"({"<|user|>": 640, "<|bot|>": 641})"},
        {"tokenizer_config.json", R"({"extra_special_tokens": ["<|user|>"], "pad_token": "<|bot|>", "x": Infinity})"}}},
      {"added_tokens.json alone: none is special",
       {{"added_tokens.json", R"({"<|user|>": 640, "<|bot|>": 641})"}},
       false},
  };
  for (const bool full : {false, true})
    for (const Row& row : rows) {
      INFO(row.what << ", tokenizer.json: " << full);
      TempDir dir;
      for (const char* file : {"vocab.json", "merges.txt", "tokenizer.json"})
        if (full == (std::string(file) == "tokenizer.json")) std::filesystem::copy(folder() + "/" + file, dir / file);
      const std::string before = tokenizer_identity(dir.str());
      CHECK(tokenizer_identity(folder()).find(before) != std::string::npos);
      for (const auto& [name, content] : row.files) dir.write(name, content);
      const auto tokenizer = load_tokenizer(dir.str());
      CHECK(tokenizer->encode(text, {.parse_special = true}) == wanted);
      CHECK(tokenizer->decode(wanted, false) == text);
      CHECK(tokenizer->is_special(641) == row.special);
      CHECK(tokenizer->vocab_size() == 642);
      CHECK(tokenizer->eos() == 0);
      // the added tokens are part of the identity, because training uses them
      CHECK(tokenizer_identity(dir.str()).starts_with(before));
      CHECK(tokenizer_identity(dir.str()).find(", tokens beside 25 bytes, crc ") != std::string::npos);
      const TempDir copy;  // existing tokenizer files in the target are removed
      copy.write("added_tokens.json", R"({"<|other|>": 640})"), copy.write("chat_template.jinja", "old");
      dir.write("tokenizer.model", "model");
      copy_tokenizer(dir.str(), copy.str());
      CHECK(load_tokenizer(copy.str())->encode(text, {.parse_special = true}) == wanted);
      CHECK(tokenizer_identity(copy.str()) == tokenizer_identity(dir.str()));
      CHECK(copy.files() == dir.files());
      CHECK(copy.read("tokenizer.model") == "model");
    }

  // The flags in added_tokens_decoder override those in tokenizer.json; added_tokens.json has no flags and overrides
  // nothing.
  TempDir dir;
  std::filesystem::copy(::golden("tokenizer/qwen2/tokenizer.json"), dir / "tokenizer.json");
  const auto ids = [&] { return load_tokenizer(dir.str())->encode("a <tool_call> b").size(); };
  CHECK(ids() == 4);
  dir.write("added_tokens.json", R"({"<tool_call>": 653})");
  CHECK(ids() == 4);
  dir.write("tokenizer_config.json",
            R"({"added_tokens_decoder": {"653": {"content": "<tool_call>", "lstrip": true, "rstrip": true}}})");
  CHECK(ids() == 3);
  // A special token named in the configuration is special if the vocabulary contains it, even if no list does.
  dir.write("tokenizer_config.json",
            R"({"added_tokens_decoder": {}, "eos_token": "he", "image_token": {"content": "in"}})");
  const auto named = load_tokenizer(dir.str());
  CHECK(named->is_special(*named->eos()));
  CHECK(named->encode("theinn", {.parse_special = true}).size() == 4);

  const std::pair<const char*, const char*> wrong[] = {
      {R"({"added_tokens_decoder": {"640": {"content": "<tool_call>"}}})",
       "token \"<tool_call>\" has id 653 here, and 640 before"},
      {R"({"added_tokens_decoder": {"five": {"content": "x"}}})", "added_tokens_decoder"},
      {R"({"added_tokens_decoder": {"5": {}}})", "expected a key \"content\""},
      {R"({"added_tokens_decoder": {"5": {"content": "<new>"}}})", "id 5 is used twice"},
      {R"({"eos_token": "<none>"})", "eos_token: \"<none>\" is not in the vocabulary"},
      {"[]", "tokenizer_config.json: expected an object, got a list"},
  };
  for (const auto& [config, said] : wrong) {
    dir.write("tokenizer_config.json", config);
    CHECK_ERROR(load_tokenizer(dir.str()), said);
  }
  dir.write("tokenizer_config.json", R"({"added_tokens_decoder": {"5": {"content": "<a\nb>"}}})");
  CHECK_ERROR(load_tokenizer(dir.str()), R"(and "<a\x0ab>"; give each its own)");  // an escape in place of the newline
  // vocab.json does not say how words are split; GPT-2's rule applies.
  TempDir parts;
  for (const char* file : {"vocab.json", "merges.txt"}) std::filesystem::copy(folder() + "/" + file, parts / file);
  parts.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  CHECK_ERROR(load_tokenizer(parts.str()), "expected a GPT2Tokenizer for vocab.json and merges.txt, got \"Qwen2");
  parts.write("tokenizer_config.json", R"({"add_prefix_space": true})");
  CHECK_ERROR(load_tokenizer(parts.str()), "add_prefix_space true is not supported");
}

TEST_CASE("an added token whose id the vocabulary has, too, is decoded as there") {
  const auto plain = from_files();
  for (const bool normalized : {true, false}) {
    Json file = read_json(folder() + "/tokenizer.json");
    // the token of the byte 0xe9, the first byte of "香"
    const int64_t byte = file.at("model").at("vocab").at("é").as_int();
    file["normalizer"] = Json(Json::Object{{"type", "NFC"}});
    file["added_tokens"].push_back(Json::Object{{"id", byte}, {"content", "é"}, {"normalized", normalized}});
    file["added_tokens"].push_back(Json::Object{{"id", 640}, {"content", "éx"}, {"normalized", normalized}});
    const auto tokenizer = BpeTokenizer::from_json(file, "t");
    const auto ids = tokenizer.encode("香");
    CHECK(ids == plain.encode("香"));
    CHECK(ids.front() == byte);
    CHECK(tokenizer.decode(ids) == "香");
    CHECK(tokenizer.encode("éxé") == std::vector<int32_t>{640, int32_t(byte)});
    // id 640 is not in the vocabulary: it is the added token
    CHECK(tokenizer.decode(std::vector<int32_t>{640, int32_t(byte)}) == "éx\xef\xbf\xbd");
  }
}

TEST_CASE("corrupt files are refused with file and key") {
  TempDir dir;
  const char* const files[][3] = {
      {"{", "", "vocab.json:1:2: syntax error"},
      {"[]", "", "vocab.json: expected an object, got a list"},
      {"{}", "", "expected tokens, got none"},
      {R"({"a": "0"})", "", "vocab.json: \"a\": expected an integer, got a string"},
      {R"({"a": 0, "b": 0})", "", "vocab.json: \"b\": id 0 is used twice"},
      {R"({"a": 0, "a": 1})", "", "key \"a\" appears twice"},
      {R"({"a": -1})", "", "expected an id from 0 to 1000000, got -1"},
      {R"({"a": 4000000000})", "", "got 4000000000"},
      {"{\"\xff\": 1}", "", "vocab.json:1:3: syntax error"},
      {R"({"a": 0, "b": 1, "ab": 2})", "#version: 0.2\na b\na c\n",
       "merges.txt:3: token \"c\" is not in the vocabulary"},
      {R"({"a": 0, "b": 1})", "a b\n", "merges.txt:1: token \"ab\" is not in the vocabulary"},
      {R"({"a": 0, "b": 1, "ab": 2})", "a b\na b\n", "merges.txt:2: the pair \"a b\" appears twice"},
      {R"({"a": 0, "b": 1, "ab": 2})", "ab\n", "expected two tokens with a space between, got \"ab\""},
      {R"({"a": 0, "b": 1, "ab": 2})", "a b c\n", "expected two tokens with a space between"},
      {R"({"a": 0, "b": 1, "ab": 2})", "a \xff\n", "expected two tokens of GPT-2's byte alphabet"},
  };
  for (const auto& [vocab, merges, said] : files)
    CHECK_ERROR(BpeTokenizer::from_files(dir.write("vocab.json", vocab), dir.write("merges.txt", merges)), said);
  const std::string words = R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false})";
  const auto full = [&](const std::string& model, const std::string& rest = "") {
    return "{" + words + rest + ", \"model\": {" + model + "}}";
  };
  const auto beside = [&](const std::string& rest) { return full(R"("vocab": {"a": 0}, "merges": [])", ", " + rest); };
  const auto other = [](const std::string& pre, const std::string& decoders = "") {
    return "{\"pre_tokenizer\": " + pre +
           (decoders.empty() ? "" : ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": " + decoders + "}") +
           R"(, "model": {"vocab": {"a": 0}, "merges": []}})";
  };
  const std::pair<std::string, const char*> jsons[] = {
      {"{}", "expected a key \"model\", found none"},
      {full(R"("type": "WordPiece")"), "model.type: expected BPE, got WordPiece"},
      {full(R"("vocab": {"a": 0})"), "model: expected a key \"merges\""},
      {full(R"("vocab": {"a": 0}, "merges": [1])"), "model.merges[0]: expected a string, got an integer"},
      {full(R"("vocab": {"a": 0}, "merges": [["a"]])"), "model.merges[0]: expected two tokens, got 1"},
      {full(R"("vocab": {"a": 0}, "merges": [], "byte_fallback": true)"), "byte_fallback true is not supported"},
      {beside(R"("normalizer": {"type": "NFKC"})"), "normalizer: NFKC is not supported (NFC, Prepend and Replace are)"},
      {beside(R"("normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})"),
       "normalizer: Replace: expected a pattern of String, got {\"Regex\": \"a\"}"},
      {full(R"("vocab": {"a": 0}, "merges": [], "dropout": 0.1)"), "dropout 0.1 is not supported"},
      {full(R"("vocab": {"a": 0}, "merges": [], "dropout": NaN)"), "dropout null is not supported"},
      {full(R"("vocab": {"a": 0}, "merges": [], "unk_token": "u")"), "unk_token: \"u\" is not in the vocabulary"},
      {beside(R"("decoder": {"type": "WordPiece"})"), "decoder: WordPiece is not supported"},
      {beside(R"("post_processor": {"type": "BertProcessing"})"),
       "post_processor: BertProcessing is not supported (TemplateProcessing is)"},
      {beside(R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
                 "special_tokens": {"x": {"ids": [5]}}})"),
       "TemplateProcessing: id 5 of x is not in the vocabulary"},
      {beside(R"("added_tokens": [{"id": 0, "content": "<s>"}])"), "id 0 is used twice"},
      {beside(R"("added_tokens": [{"id": 1, "content": "<s>", "single_word": true}])"),
       "added_tokens[0]: single_word true is not supported"},
      {beside(R"("added_tokens": [{"id": 3, "content": "a"}])"), "token \"a\" has id 3 here, and 0 in the vocabulary"},
      {beside(R"("added_tokens": [{"id": 99999999, "content": "b"}])"),
       "expected an id from 0 to 1000000, got 99999999"},
      {beside(R"("added_tokens": [{"id": 1, "content": ""}])"), "expected a token, got an empty one"},
      {beside(R"("added_tokens": [{"id": 1, "content": "<s>"}, {"id": 1, "content": "<s>"}])"),
       "added token \"<s>\" appears twice"},
      {beside(R"("added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "<s>"}])"),
       "token \"<s>\" has id 2 here, and 1"},
      {other(R"({"type": "Digits"})"), "pre_tokenizer: Digits is not supported"},
      {other(R"({"type": "ByteLevel", "add_prefix_space": true})"), "add_prefix_space true is not supported"},
      {other(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "[a-z]+|."}}]})"),
       "pre_tokenizer: Split: expected the regular expression of GPT-2, Llama 3 or Qwen 2, got [a-z]+|."},
      {other(R"({"type": "Split", "pattern": {"String": " "}})"), "expected a single Split, with a Regex pattern"},
      {other(R"({"type": "Metaspace", "replacement": "ab"})"), "expected one character as replacement, got \"ab\""},
      {other(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"), "prepend_scheme last"},
      {other("null"), "decoder: expected Replace, ByteFallback, Fuse, Strip, got none"},
      {other("null", R"([{"type": "Fuse"}, {"type": "Replace"}])"), "in this order, once each"},
      {other("null", R"([{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}])"),
       "Strip: expected 0 to 1000 spaces at the start"},
      {other(std::string(100, '[') + std::string(100, ']')), "nested deeper than 64 levels"},
      {"[1]", "expected an object, got a list"},
  };
  const auto read = [&](const std::string& text) {
    return BpeTokenizer::from_tokenizer_json(dir.write("t.json", text));
  };
  for (const auto& [text, said] : jsons) CHECK_ERROR(read(text), said);
  const auto pairs = read(full(R"("dropout": 0.0, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]])"));
  CHECK(pairs.encode("abab") == std::vector<int32_t>{2, 2});
  const auto gap = read(full(R"("vocab": {"a": 0, "b": 2}, "merges": [])"));
  CHECK_ERROR(gap.decode(std::vector<int32_t>{1}), "[tokenizer] the vocabulary has no token with id 1");
  CHECK_ERROR(gap.decode(std::vector<int32_t>{3}), "[tokenizer] expected ids from 0 to 2, got 3");
  // Files that would exhaust memory or run forever.
  std::string doubling;
  for (int i = 0; i < 40; ++i)
    doubling += str(i ? ", " : "", R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  const auto grows = read(beside(R"("normalizer": {"type": "Sequence", "normalizers": [)" + doubling + "]}"));
  CHECK_ERROR(grows.encode("a"), "expected a normalised text of at most 64 times");
  const auto spaces = read(beside(R"("added_tokens": [{"id": 1, "content": " ", "lstrip": true, "rstrip": true}])"));
  CHECK(spaces.encode("a" + std::string(1'000'000, ' ') + "a").size() == 1'000'002);
  CHECK_ERROR(pairs.encode("c"), "the vocabulary has no token for byte 99");
  CHECK_ERROR(load_tokenizer(dir / "none"), "there is no such folder");
}

TEST_CASE("added tokens: the leftmost match wins, then the longest, as in a search one by one") {
  uint32_t state = 1;
  const auto draw = [&](uint32_t below) { return ((state = state * 1664525 + 1013904223) >> 8) % below; };
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> texts;
    std::string text;
    for (uint32_t n = 1 + draw(8); n > 0; --n) {
      std::string token;
      for (uint32_t k = 1 + draw(5); k > 0; --k) token += char('a' + draw(2));
      texts.insert(token);
    }
    for (uint32_t k = draw(60); k > 0; --k) text += char('a' + draw(3));
    AddedTokens tokens;
    for (const std::string& t : texts)
      tokens.add({.text = t, .id = int32_t(std::distance(texts.begin(), texts.find(t)))});
    tokens.finish("t");
    std::string expected, got;
    for (size_t at = 0; at < text.size();) {
      const std::string* longest = nullptr;
      for (const std::string& t : texts)
        if (text.compare(at, t.size(), t) == 0 && (!longest || t.size() > longest->size())) longest = &t;
      expected += longest ? "[" + *longest + "]" : text.substr(at, 1);
      at += longest ? longest->size() : 1;
    }
    tokens.cut(text, true, [&](std::string_view piece, int32_t id) {
      got += id < 0 ? std::string(piece) : "[" + *std::next(texts.begin(), id) + "]";
    });
    CHECK(got == expected);
  }
}

TEST_CASE("added tokens: thousands that nearly match take linear time") {
  for (const bool other_end : {false, true}) {
    AddedTokens tokens;
    tokens.add({.text = "a", .id = 9999});
    for (int i = 1; i <= 3000; ++i)
      tokens.add({.text = other_end ? "b" + std::string(size_t(i), 'a') : std::string(size_t(i), 'a') + "b", .id = i});
    tokens.finish("t");
    const std::string text(1 << 20, 'a');
    int64_t found = 0;
    const std::clock_t start = std::clock();
    tokens.cut(text, true, [&](std::string_view, int32_t id) { found += id == 9999; });
    CHECK(double(std::clock() - start) / CLOCKS_PER_SEC < 1);
    CHECK(found == 1 << 20);
  }
  AddedTokens tokens;
  for (int i = 0; i < 1100; ++i) tokens.add({.text = std::string(4000, 'a') + std::to_string(i), .id = i});
  CHECK_ERROR(tokens.finish("t"), "t: expected added tokens of at most 4194304 bytes together, with endings");
}
