// The tables of BpeTokenizer: vocabulary, merges, added tokens. All names are checked; Errors name file and key.
#include <charconv>

#include "base/classic_text.h"
#include "base/suggest.h"
#include "data/files.h"
#include "data/json.h"
#include "extensions/hugging_face/bpe.h"
#include "extensions/hugging_face/unicode.h"

namespace lockstep::data {
namespace {

constexpr int64_t max_vocab_bytes = int64_t(64) << 20, max_id = 1'000'000;

/// The byte that a character stands for in byte-level files, or -1. Printable bytes stand for themselves; the others
/// are written as U+0100 and up.
int byte_of(uint32_t code) {
  static const auto table = [] {
    std::vector<int> bytes(512, -1);
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      bytes[visible ? uint32_t(b) : next++] = b;
    }
    return bytes;
  }();
  return code < table.size() ? table[code] : -1;
}

/// The byte that a token such as "<0xC3>" stands for, or -1.
int byte_token(const std::string& token) {
  int value = -1;
  if (token.size() == 6) std::from_chars(&token[3], &token[5], value, 16);
  return value >= 0 && token == format("<0x%02X>", unsigned(value)) ? value : -1;
}

}  // namespace

/// The text of a vocabulary entry. False if it is empty, or a byte-level entry has a character that stands for no byte.
bool BpeTokenizer::spell(const std::string& token, std::string& text) const {
  if (!rules_.byte_level) text = token;
  else {
    text.clear();
    for (size_t at = 0; at < token.size();) {
      const Char c = decode_utf8(token, at);
      const int byte = c.valid ? byte_of(c.code) : -1;
      if (byte < 0) return false;
      text += char(byte);
      at += size_t(c.bytes);
    }
  }
  return !text.empty();
}

BpeTokenizer::Ends BpeTokenizer::ends_of(std::string_view text) const {
  if (text.empty()) return {};
  if (rules_.byte_level) return {uint8_t(text.front()), uint8_t(text.back())};
  return {decode_utf8(text, 0).code, last_character(text).code};
}

std::optional<int32_t> BpeTokenizer::id_of(const std::string& token) const {
  if (const auto added = added_.find(token); added != added_.end()) return added->second;
  std::string text;
  const auto found = spell(token, text) ? ids_.find(text) : ids_.end();
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void BpeTokenizer::set_token(int64_t id, std::string text, const std::string& where) {
  LOCKSTEP_CHECK(id >= 0 && id <= max_id, where, ": expected an id from 0 to ", max_id, ", got ", id, "; correct it");
  if (id >= vocab_size()) {
    tokens_.resize(size_t(id) + 1);
    ends_.resize(size_t(id) + 1);
  }
  LOCKSTEP_CHECK(!knows(id), where, ": id ", id, " is used twice; give each token its own");
  ends_[size_t(id)] = ends_of(text);
  tokens_[size_t(id)] = {.text = std::move(text), .known = true};
}

void BpeTokenizer::add_vocab(const Json& vocab, const std::string& where) {
  std::string text;
  for (const auto& [token, value] : vocab.as_object(where)) {
    const std::string place = str(where, ": \"", token, "\"");
    const int64_t id = value.as_int(place);
    // A special token may be in the vocabulary, too. If its characters do not stand for bytes, it keeps its text.
    const bool plain = spell(token, text);
    set_token(id, plain ? text : token, place);
    if (plain) ids_.emplace(text, int32_t(id));
  }
  LOCKSTEP_CHECK(!ids_.empty(), where, ": expected tokens, got none; fetch the file again");
}

void BpeTokenizer::add_merge(const std::string& both, const std::string& where) {
  const std::vector<std::string> parts = split(both, ' ');
  LOCKSTEP_CHECK(parts.size() == 2, where, ": expected two tokens with a space between, got \"", both,
                 "\"; correct the file");
  add_merge(parts[0], parts[1], where);
}

void BpeTokenizer::add_merge(const std::string& first, const std::string& second, const std::string& where) {
  std::string a, b;
  LOCKSTEP_CHECK(spell(first, a) && spell(second, b), where, ": expected two tokens",
                 rules_.byte_level ? " of GPT-2's byte alphabet" : "", ", got \"", first, "\" and \"", second,
                 "\"; correct this merge or take it out");
  const auto found = [&](const std::string& text, const std::string& name) {
    const auto place = ids_.find(text);
    LOCKSTEP_CHECK(place != ids_.end(), where, ": token \"", name, "\" is not in the vocabulary; add it there");
    return place->second;
  };
  const int32_t left = found(a, first), right = found(b, second);
  LOCKSTEP_CHECK(merges_.add(left, right, found(a + b, first + second)), where, ": the pair \"", first, " ", second,
                 "\" appears twice; keep one of them");
  joined_.add(ends_of(a).last, ends_of(b).first, 1);
}

void BpeTokenizer::add_token(AddedToken token, bool normalized, const std::string& where) {
  const std::string name = token.text;
  const int64_t id = token.id;
  LOCKSTEP_CHECK(!name.empty(), where, ": expected a token, got an empty one; take it out");
  const std::optional<int32_t> there = id_of(name);
  LOCKSTEP_CHECK(!there || *there == id, where, ": token \"", name, "\" has id ", id, " here, and ", *there,
                 " in the vocabulary or before; give it one id");
  if (!there && knows(id))
    LOCKSTEP_CHECK(tokens_[size_t(id)].text == name, where, ": id ", id, " is used twice, for \"",
                   tokens_[size_t(id)].text, "\" and \"", name, "\"; give each its own");
  else if (!there) set_token(id, name, where);
  tokens_[size_t(id)].special |= token.special;
  added_.emplace(name, int32_t(id));
  if (!normalized) return cut_first_.add(std::move(token));
  token.text = normalize(name);
  // An added token that is also in the vocabulary keeps the vocabulary's bytes: byte-level files write every byte as a
  // character, so "é" may stand for one byte in the UTF-8 of another character.
  if (!there || !rules_.byte_level) tokens_[size_t(id)].text = token.text;
  cut_normalized_.add(std::move(token));
}

void BpeTokenizer::add_tokens(const Json& file, const std::string& origin) {
  const Json* const added = file.find("added_tokens");
  if (!added || added->is_null()) return;
  int64_t index = 0;
  for (const Json& token : added->as_array(origin + ": added_tokens")) {
    const std::string where = str(origin, ": added_tokens[", index++, "]");
    const auto flag = [&](const char* key) {
      const Json* value = token.find(key);
      return value && !value->is_null() && value->as_bool(where + "." + key);
    };
    LOCKSTEP_CHECK(!flag("single_word"), where, ": single_word true is not supported; set it to false");
    const int64_t id = token.at("id", where).as_int(where + ".id");
    LOCKSTEP_CHECK(id >= 0 && id <= max_id, where, ": expected an id from 0 to ", max_id, ", got ", id, "; correct it");
    add_token({.text = token.at("content", where).as_string(where + ".content"),
               .id = int32_t(id),
               .special = flag("special"),
               .left = flag("lstrip"),
               .right = flag("rstrip")},
              flag("normalized"), where);
  }
}

/// Builds the lookup tables and the decoded texts. Call it after all tokens are added.
void BpeTokenizer::finish(const std::string& where) {
  cut_first_.finish(where);
  cut_normalized_.finish(where);
  byte_ids_.fill(-1);
  for (const auto& [text, id] : ids_) {
    const int byte = !rules_.byte_level ? byte_token(text) : text.size() == 1 ? int(uint8_t(text[0])) : -1;
    if (byte >= 0) byte_ids_[size_t(byte)] = id;
    if (const Char c = decode_utf8(text, 0); c.valid && size_t(c.bytes) == text.size()) character_ids_[c.code] = id;
  }
  for (Token& token : tokens_) {
    if (!rules_.decode_from.empty()) token.text = replaced(token.text, rules_.decode_from, rules_.decode_to);
    if (const int byte = rules_.decode_bytes ? byte_token(token.text) : -1; byte >= 0) token.text = char(byte);
  }
}

BpeTokenizer BpeTokenizer::from_files(const std::string& vocab_path, const std::string& merges_path) {
  Json file;
  file["model"]["vocab"] = read_json(vocab_path, {.bytes = max_vocab_bytes, .python = true});
  return from_vocab(file, vocab_path, merges_path);
}

BpeTokenizer BpeTokenizer::from_vocab(const Json& file, const std::string& vocab_path, const std::string& merges_path) {
  BpeTokenizer result;
  const Json& vocab = file.at("model").at("vocab");
  std::vector<std::string> lines = split(read_file(merges_path, max_vocab_bytes), '\n');
  const std::string where = "[tokenizer] " + vocab_path;
  result.add_vocab(vocab, where);
  int line_number = 0;
  for (std::string& line : lines) {
    ++line_number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with("#version")) continue;
    result.add_merge(line, str("[tokenizer] ", merges_path, ":", line_number));
  }
  result.add_tokens(file, where);
  if (const Json* end = vocab.find("<|endoftext|>")) {
    if (!result.added_.count("<|endoftext|>"))
      result.add_token({.text = "<|endoftext|>", .id = int32_t(end->as_int()), .special = true}, false, where);
    result.bos_ = result.eos_ = int32_t(end->as_int());
  }
  result.finish(where);
  return result;
}

}  // namespace lockstep::data
