// Ids and texts of six tokenizers against Hugging Face's package (golden/tokenizer/cases.json.gz, made by
// tests/interop/tokenizers_golden.py), and incremental decoding.
#include <zlib.h>

#include "data/draw.h"
#include "data/json.h"
#include "data/utf8.h"
#include "extensions/hugging_face/bpe.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/hugging_face/unicode.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string folder_of(const std::string& name) { return ::golden("tokenizer/" + name); }

const Json& golden_cases() {
  static const Json cases = [] {
    const std::string path = ::golden("tokenizer/cases.json.gz");
    std::string text;
    gzFile file = gzopen(path.c_str(), "rb");
    REQUIRE(file);
    std::vector<char> part(1 << 16);
    for (int count; (count = gzread(file, part.data(), unsigned(part.size()))) > 0;)
      text.append(part.data(), size_t(count));
    gzclose(file);
    return parse_json(text, path);
  }();
  return cases;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(int32_t(id.as_int()));
  return ids;
}

/// Decodes ids one by one; each piece of text must consist of whole characters.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  Decoder decoder(tokenizer, skip_special);
  std::string all;
  const auto take = [&](const std::string& part) {
    const ByteTokenizer bytes;
    Decoder nothing_waits(bytes, false);
    all += part;
    for (const char c : part) nothing_waits.push(uint8_t(c));
    CHECK(nothing_waits.flush().empty());
  };
  for (const int32_t id : ids) take(decoder.push(id));
  take(decoder.flush());
  return all;
}

}  // namespace

TEST_CASE("2000 texts in six tokenizers, as the reference has them") {
  const auto& texts = golden_cases().at("texts").as_array();
  CHECK(texts.size() == 2000);
  for (const auto& [name, cases] : golden_cases().at("tokenizers").as_object()) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer(folder_of(name));
    int wrong = 0;
    const auto same = [&](const auto& found, const auto& wanted, size_t row) {
      if (found == wanted) return;
      if (++wrong <= 5) {
        CAPTURE(row);
        CHECK(found == wanted);
      }
    };
    const auto decodes = [&](const std::vector<int32_t>& ids, const std::string& text, size_t row) {
      const bool skip = row % 2 == 0;
      same(tokenizer->decode(ids, skip), text, row);
      same(streamed(*tokenizer, ids, skip), text, row);
    };
    const auto key_of = [](size_t row) { return std::to_string(row); };
    for (size_t row = 0; row < texts.size(); ++row) {
      const std::string& text = texts[row].as_string();
      const auto ids = ids_of(cases.at("ids").as_array()[row]);
      same(tokenizer->encode(text, {.add_special = row % 2 == 0}), ids, row);
      const Json *other = cases.at("decoded").find(key_of(row)), *parsed = cases.at("parsed").find(key_of(row));
      decodes(ids, other ? other->as_string() : text, row);
      const auto parsed_ids = parsed ? ids_of(*parsed) : ids;
      same(tokenizer->encode(text, {.add_special = row % 2 == 0, .parse_special = true}), parsed_ids, row);
      if (parsed) decodes(parsed_ids, cases.at("parsed_decoded").at(key_of(row)).as_string(), row);
    }
    const auto& lists = cases.at("any_ids").as_array();
    for (size_t row = 0; row < lists.size(); ++row)
      decodes(ids_of(lists[row]), cases.at("any_decoded").as_array()[row].as_string(), row);
    CHECK(wrong == 0);
    CHECK(lists.size() == 150);
  }
}

TEST_CASE("a SentencePiece-like tokenizer, against results worked out by hand") {
  TempDir dir;
  const auto write = [&](const std::string& added) {
    std::string vocab = R"("<unk>": 0, "<s>": 1, "</s>": 2)", merges;
    int id = 3;
    for (int b = 0; b < 256; ++b)
      vocab += str(", \"<0x", "0123456789ABCDEF"[b / 16], "0123456789ABCDEF"[b % 16], ">\": ", id++);
    for (const char* token : {"▁",  "h",  "e",    "l",      "o",  "w",  "r",  "d",    "a",      "▁h",
                              "el", "lo", "▁hel", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "▁a"})
      vocab += str(", \"", token, "\": ", id++);
    for (const char* pair : {"▁ h", "e l", "l o", "▁h el", "▁hel lo", "▁ w", "o r", "l d", "▁w or", "▁wor ld", "▁ a"})
      merges += str(merges.empty() ? "\"" : ", \"", pair, "\"");
    dir.write("tokenizer.json",
              str(R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": null,
      "added_tokens": [)",
                  added, R"({"id": 0, "content": "<unk>", "special": true},
        {"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
      "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": {)",
                  vocab, R"(}, "merges": [)", merges, "]}}"));
    return load_tokenizer(dir / ".");
  };
  auto tokenizer = write("");
  const auto tokens = [&](std::string_view text, EncodeOptions options = {}) {
    std::string names;
    for (const int32_t id : tokenizer->encode(text, options))
      names += (names.empty() ? "" : "|") +
               (id < 259 && id > 2 ? str("#", id - 3) : std::string(tokenizer->token_bytes(id)));
    return names;
  };
  const char* rows[][3] = {{"hello world", "<s>| hello| world", "<s>| hello| world"},
                           {" hello", "<s>| | hello", "<s>| | hello"},
                           {"a</s>hello", "<s>| a|</s>| hello", "<s>| a|#60|#47|#115|#62|h|el|lo"},
                           {"é", "<s>| |#195|#169", "<s>| |#195|#169"},
                           {"", "<s>", "<s>"}};
  for (const auto& [text, parsed, typed] : rows) {
    CAPTURE(text);
    CHECK(tokens(text, {.parse_special = true}) == parsed);
    CHECK(tokens(text) == typed);
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  const auto decoded = [&](std::vector<int32_t> ids) { return tokenizer->decode(ids); };
  CHECK(tokenizer->decode(tokenizer->encode("a</s>hello", {.parse_special = true})) == "a hello");
  CHECK(tokenizer->decode(tokenizer->encode("a</s>hello", {.parse_special = true}), false) == "<s> a</s> hello");
  CHECK(decoded({3 + 0xc3}) == "\ufffd");
  CHECK(decoded({3 + 0xe4, 3 + 0xbd, 267}) == "\ufffd\ufffda");
  CHECK(tokenizer->bos() == 1);
  CHECK(tokenizer->eos() == 2);

  // The leading space of a token is dropped only at the very beginning; an incomplete character waits for its rest.
  Decoder decoder(*tokenizer);
  const auto hello = tokenizer->encode("hello", {.add_special = false}),
             world = tokenizer->encode("world", {.add_special = false});
  const std::pair<int32_t, const char*> pushed[] = {
      {1, ""},         {hello[0], "hello"}, {world[0], " world"},       {3 + 0xc3, ""},
      {3 + 0xa9, "é"}, {3 + 0xc3, ""},      {hello[0], "\ufffd hello"}, {3 + 0xc3, ""}};
  for (const auto& [id, text] : pushed) CHECK(decoder.push(id) == text);
  CHECK(decoder.flush() == "\ufffd");
  CHECK(decoder.flush().empty());

  // tokenizer_config.json defines the tokens before and after a text.
  const std::pair<const char*, const char*> configs[] = {
      {"{}", "<s>| hello"},
      {R"({"add_bos_token": false, "bos_token": "<s>"})", " hello"},
      {R"({"add_bos_token": true, "bos_token": {"content": "<s>"}})", "<s>| hello"},
      {R"({"add_bos_token": true, "add_eos_token": true, "eos_token": "</s>", "bos_token": "</s>"})",
       "</s>|<s>| hello|</s>"}};
  for (const auto& [config, wanted] : configs) {
    CAPTURE(config);
    dir.write("tokenizer_config.json", config);
    tokenizer = load_tokenizer(dir / ".");
    CHECK(tokens("hello") == wanted);
  }
  dir.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  CHECK_ERROR(load_tokenizer(dir / "."), "tokenizer_config.json: eos_token: \"<end>\" is not in the vocabulary");
  dir.write("tokenizer_config.json", R"({"bos_token": null, "add_bos_token": true})");
  CHECK_ERROR(load_tokenizer(dir / "."), "add_bos_token true: there is no such token");

  // A copy includes this configuration.
  dir.write("tokenizer_config.json", R"({"add_bos_token": false})");
  copy_tokenizer(dir / ".", dir / "copy");
  CHECK(load_tokenizer(dir / "copy")->encode("hello") == hello);
  CHECK(tokenizer_identity(dir / "copy") == tokenizer_identity(dir / "."));
}

TEST_CASE("a folder with SentencePiece's own file alone") {
  TempDir dir;
  dir.write("tokenizer.model", "\n\x0e");
  CHECK_ERROR(load_tokenizer(dir / "."),
              "tokenizer.model is not supported; convert it with Transformers: AutoTokenizer.from_pretrained(");
  CHECK_ERROR(load_tokenizer(dir / "."), ".save_pretrained(");
  CHECK_ERROR(load_tokenizer(dir / "gone"), "there is no such folder");
}

TEST_CASE("pre-tokenisation of GPT-2, Llama 3 and Qwen 2") {
  const auto words = [](std::string_view text, WordPattern pattern) {
    std::string joined;
    for (const auto word : split_words(text, pattern)) (joined += word) += '|';
    return joined;
  };
  const std::pair<const char*, const char*> gpt2[] = {{"", ""},
                                                      {"the cat", "the| cat|"},
                                                      {"it's we'll I'd", "it|'s| we|'ll| I|'d|"},
                                                      {"a  b", "a| | b|"},
                                                      {"a   ", "a|   |"},
                                                      {"a\n\nb", "a|\n|\n|b|"},
                                                      {" 's", " '|s|"},
                                                      {"x1y", "x|1|y|"},
                                                      {"!? 12", "!?| 12|"},
                                                      {" ", " |"},
                                                      {"é½ 你", "é|½| 你|"}};
  for (const auto& [text, wanted] : gpt2) CHECK(words(text, WordPattern::gpt2) == wanted);
  const char* const others[][3] = {{"", "", ""},
                                   {"it'S we'lL 'ſa", "it|'S| we|'lL| '|ſa|", ""},
                                   {"x'ſa", "x|'ſ|a|", ""},
                                   {"12345 6", "123|45| |6|", "1|2|3|4|5| |6|"},
                                   {"a\tb(c !?\n\nd", "a|\tb|(c| !?\n\n|d|", ""},
                                   {"a  \n \n  b", "a|  \n \n| | b|", ""},
                                   {"a \r\n", "a| \r\n|", ""},
                                   {"a   ", "a|   |", ""},
                                   {"\na \xff\xc3", "\n|a| \xff\xc3|", ""}};
  for (const auto& [text, llama3, qwen2] : others) {
    CAPTURE(text);
    CHECK(words(text, WordPattern::llama3) == llama3);
    CHECK(words(text, WordPattern::qwen2) == (*qwen2 ? qwen2 : llama3));
  }
  for (const auto pattern : {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen2})
    CHECK(word_pattern(to_string(pattern)) == pattern);
  CHECK(!word_pattern("\\w+"));
}

TEST_CASE("canonical composition of every character, and of many together, matches Python") {
  std::string all;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string one;
    append_utf8(one, code);
    all += to_nfc(one) + "\n";
  }
  const auto crc = [](const std::string& text) {
    return crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  };
  CHECK(crc(all) == 0x351812cb);
  const uint32_t ranges[][2] = {{0x41, 0x5a},     {0xc0, 0xff},     {0x300, 0x345},  {0x1100, 0x1112}, {0x1161, 0x1175},
                                {0x11a7, 0x11c3}, {0xac00, 0xac20}, {0x915, 0x94d},  {0x9be, 0x9d7},   {0xb3e, 0xb57},
                                {0x1b05, 0x1b45}, {0xf900, 0xf910}, {0x1f80, 0x1faf}};
  uint64_t state = 1;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t((state >> 33) % n);
  };
  all.clear();
  for (int row = 0; row < 50000; ++row) {
    std::string text;
    for (uint32_t left = 1 + draw(8); left > 0; --left) {
      const auto& range = ranges[draw(std::size(ranges))];
      append_utf8(text, range[0] + draw(range[1] - range[0] + 1));
    }
    all += to_nfc(text) + "\n";
  }
  CHECK(crc(all) == 0x28568c5b);
  CHECK(to_nfc("e\xcc\x81\xff\xcc") == "é\xff\xcc");
}

TEST_CASE("merging matches a search through all pairs after every merge") {
  Draws draws({.seed = 3});
  for (int round = 0; round < 200; ++round) {
    // Tokens are base-3 digits after a leading 1. The merges are in arbitrary order, which training would never
    // produce.
    Merges merges;
    std::vector<std::array<int32_t, 3>> rows;
    const auto join = [](int32_t a, int32_t b) {
      int32_t digits = 1;
      while (digits * 3 <= b) digits *= 3;
      return a * digits + (b - digits);
    };
    std::vector<int32_t> tokens{3, 4, 5};
    for (int i = 0; i < 12; ++i) {
      const int32_t a = tokens[size_t(draws.below(int64_t(tokens.size())))],
                    b = tokens[size_t(draws.below(int64_t(tokens.size())))];
      if (a > 3000 || b > 3000) continue;
      rows.push_back({a, b, join(a, b)});
      tokens.push_back(join(a, b));
    }
    for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[size_t(draws.below(int64_t(i)))]);
    std::vector<std::array<int32_t, 3>> order;
    for (const auto& row : rows)
      if (merges.add(row[0], row[1], row[2])) order.push_back(row);
    std::vector<int32_t> ids;
    for (int64_t i = draws.below(60); i >= 0; --i) ids.push_back(3 + int32_t(draws.below(round % 3 + 1)));
    std::vector<int32_t> naive = ids;
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& row : order) {
        for (size_t i = 0; i + 1 < naive.size() && !merged; ++i) {
          if (naive[i] != row[0] || naive[i + 1] != row[1]) continue;
          naive[i] = row[2];
          naive.erase(naive.begin() + int64_t(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    ids.resize(merges.apply(ids));
    CHECK(ids == naive);
  }
}

TEST_CASE("one word of millions of letters") {  // 100 MB take 3 to 12 s of CPU time; quadratic merging would take years
  for (const char* name : {"sp_prepend", "llama3"}) {
    const auto tokenizer = load_tokenizer(folder_of(name));
    Draws draws({.seed = 4});
    std::string words[] = {std::string(3'000'000, 'a'), "", std::string(1'000'000, ' ') + "the"};
    for (int i = 0; i < 2'000'000; ++i) words[1] += "etaoin"[draws.below(6)];
    for (const std::string& word : words) CHECK(tokenizer->decode(tokenizer->encode(word)) == word);
  }
}
