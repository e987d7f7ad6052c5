// libFuzzer: any tokenizer.json is read or rejected with an Error. Any text encodes to ids of the vocabulary, and
// decoding them one by one gives the same as decoding all of them.
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "data/json.h"
#include "data/utf8.h"
#include "extensions/hugging_face/bpe.h"
#include "tests/fuzz/limits.h"

namespace {

using namespace lockstep::data;

struct Bytes {
  const uint8_t* at;
  const uint8_t* end;
  int take() { return at < end ? *at++ : 0; }
};

/// A tokenizer assembled from parts that the bytes choose; it is nearly always valid.
Json chosen(Bytes& bytes) {
  const char* letters[] = {"a", "b", "c", "▁", "é", "<", "'", "1", "\u0301", "<0xC3>", "<0xA9>", "<s>"};
  const auto typed = [](const char* type, Json::Object fields = {}) {
    fields.emplace(fields.begin(), "type", type);
    return Json(std::move(fields));
  };
  const auto replace = [&](const char* from, const char* to) {
    return typed("Replace", {{"pattern", Json::Object{{"String", from}}}, {"content", to}});
  };
  const auto sequence = [&](const char* key, Json::Array parts) {
    return typed("Sequence", {{key, std::move(parts)}});
  };
  const int kind = bytes.take(), flags = bytes.take();
  Json file(Json::Object{}), model(Json::Object{}), vocab(Json::Object{});
  Json::Array merges, normalizers, added;
  std::vector<std::string> tokens(std::begin(letters), std::end(letters));
  for (const std::string& token : tokens) vocab[token] = int64_t(vocab.as_object().size());
  for (int left = bytes.take() % 16; left > 0; --left) {
    const std::string a = tokens[size_t(bytes.take()) % tokens.size()],
                      b = tokens[size_t(bytes.take()) % tokens.size()];
    if (a.size() + b.size() > 100) continue;
    if (!vocab.find(a + b)) vocab[a + b] = int64_t(vocab.as_object().size());
    tokens.push_back(a + b);
    merges.push_back(Json::Array{a, b});
    if (bytes.take() % 4 == 0 && merges.size() > 1) std::swap(merges.front(), merges.back());
  }
  for (int left = bytes.take() % 4; left > 0; --left) {
    const int bits = bytes.take();
    const std::string content = tokens[size_t(bytes.take()) % tokens.size()] + (bits & 32 ? ">" : "");
    const Json* there = vocab.find(content);
    added.push_back(Json::Object{{"id", there ? *there : Json(int64_t(vocab.as_object().size() + added.size()))},
                                 {"content", content},
                                 {"special", (bits & 1) != 0},
                                 {"lstrip", (bits & 2) != 0},
                                 {"rstrip", (bits & 4) != 0},
                                 {"normalized", (bits & 8) != 0}});
  }
  if (flags & 1) normalizers.push_back(typed("NFC"));
  if (flags & 2) normalizers.push_back(typed("Prepend", {{"prepend", "▁"}}));
  if (flags & 4) normalizers.push_back(replace(" ", "▁"));
  if (flags & 8) normalizers.push_back(replace("a", "aa"));
  file["normalizer"] = sequence("normalizers", normalizers);
  if (kind % 5 < 3) {
    const Json pattern = Json::Object{{"Regex", to_string(WordPattern(kind % 5))}};
    file["pre_tokenizer"] = sequence("pretokenizers", {typed("Split", {{"pattern", pattern}, {"behavior", "Isolated"}}),
                                                       typed("ByteLevel", {{"use_regex", false}})});
  } else if (kind % 5 == 3) {
    file["pre_tokenizer"] = typed(
        "Metaspace",
        {{"replacement", "▁"}, {"prepend_scheme", flags & 16 ? "first" : "always"}, {"split", (flags & 32) != 0}});
  }
  if (kind % 5 >= 3) {
    const Json strip = typed("Strip", {{"content", " "}, {"start", 1}, {"stop", 0}});
    file["decoder"] = sequence("decoders", {replace("▁", " "), typed("ByteFallback"), typed("Fuse"), strip});
    model["byte_fallback"] = true;
  }
  model["unk_token"] = "<s>";
  model["fuse_unk"] = (flags & 64) != 0;
  model["ignore_merges"] = (flags & 128) != 0;
  model["vocab"] = vocab;
  model["merges"] = merges;
  file["model"] = model;
  file["added_tokens"] = added;
  return file;
}

void check(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options) {
  const std::vector<int32_t> ids = tokenizer.encode(text, options);
  for (const bool skip : {false, true}) {
    const std::string full = tokenizer.decode(ids, skip);
    Decoder decoder(tokenizer, skip);
    std::string parts;
    for (const int32_t id : ids) {
      const std::string part = decoder.push(id);
      for (size_t at = 0; at < part.size();) {
        const Char c = decode_utf8(part, at);
        if (!c.valid) std::abort();
        at += size_t(c.bytes);
      }
      parts += part;
    }
    if (parts + decoder.flush() != full) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  Bytes bytes{data, data + size};
  try {
    const int mode = bytes.take();
    Json file;
    if (mode % 4 == 0) {  // layout of the input: JSON, a zero byte, the text
      const std::string_view all(reinterpret_cast<const char*>(bytes.at), size_t(bytes.end - bytes.at));
      const size_t json = std::min(all.find('\0'), all.size());
      file = parse_json(all.substr(0, json), "fuzz", {.bytes = 1 << 20});
      bytes.at += json;
    } else {
      file = chosen(bytes);
    }
    const auto tokenizer = BpeTokenizer::from_json(file, "fuzz");
    const std::string_view text(reinterpret_cast<const char*>(bytes.at), size_t(bytes.end - bytes.at));
    check(tokenizer, text, {});
    check(tokenizer, text, {.add_special = false, .parse_special = true});
    if (mode % 4 != 0) tokenizer.encode(std::string(text) + std::string(2000, 'a'));
  } catch (const lockstep::Error&) {}
  return 0;
}
