// Reads GPT-2 tokenizers: vocab.json and merges.txt, or tokenizer.json. Every name is checked; Errors say file and key.
#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "data/files.h"
#include "data/json.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

namespace lockstep::data {
namespace {

constexpr int64_t max_bytes = int64_t(64) << 20, max_id = 1'000'000;

/// The files spell bytes as visible characters: printable ones as themselves, the others as U+0100 upward.
/// Gives the byte of a character, or -1.
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

/// Bytes of a token as spelled in a file; false when a character stands for none.
bool spelled(const std::string& token, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const Char c = decode_utf8(token, at);
    const int byte = c.valid ? byte_of(c.code) : -1;
    if (byte < 0) return false;
    bytes += char(byte);
    at += size_t(c.bytes);
  }
  return !bytes.empty();
}

/// Refuses a setting that changes the ids unless it has its neutral value.
void expect_neutral(const Json& settings, const char* key, const std::string& where) {
  const Json* value = settings.find(key);
  const bool neutral = !value || value->is_null() || (value->is_bool() && !value->as_bool()) ||
                       (value->is_string() && value->as_string().empty());
  LOCKSTEP_CHECK(neutral, where, ": ", key, " ", value->dump(), " is not supported, only GPT-2's byte-level BPE is");
}

std::string base_error(const std::string& path) { return "[tokenizer] " + path; }

}  // namespace

void Gpt2Tokenizer::set_token(int64_t id, std::string bytes, const std::string& where) {
  LOCKSTEP_CHECK(id >= 0 && id <= max_id, where, ": expected an id from 0 to ", max_id, ", got ", id);
  if (size_t(id) >= tokens_.size()) {
    tokens_.resize(size_t(id) + 1);
    known_.resize(size_t(id) + 1);
  }
  LOCKSTEP_CHECK(!known_[size_t(id)], where, ": id ", id, " is used twice");
  tokens_[size_t(id)] = std::move(bytes);
  known_[size_t(id)] = true;
}

void Gpt2Tokenizer::add_vocab(const Json& vocab, const std::string& where) {
  std::string bytes;
  byte_ids_.fill(-1);
  for (const auto& [token, value] : vocab.as_object(where)) {
    const std::string place = str(where, ": \"", token, "\"");
    const int64_t id = value.as_int(place);
    // Not every entry is made of byte characters: special tokens may stand here too. Those have no other spelling.
    const bool plain = spelled(token, bytes);
    set_token(id, plain ? bytes : token, place);
    if (plain) ids_.emplace(bytes, int32_t(id));
    if (plain && bytes.size() == 1) byte_ids_[uint8_t(bytes[0])] = int32_t(id);
  }
  LOCKSTEP_CHECK(!ids_.empty(), where, ": expected tokens, got none");
}

void Gpt2Tokenizer::add_merge(const std::string& first, const std::string& second, const std::string& where) {
  std::string a, b;
  LOCKSTEP_CHECK(spelled(first, a) && spelled(second, b), where,
                 ": expected two tokens of GPT-2's byte alphabet, got \"", first, "\" and \"", second, "\"");
  const auto id_of = [&](const std::string& bytes, const std::string& name) {
    const auto found = ids_.find(bytes);
    LOCKSTEP_CHECK(found != ids_.end(), where, ": token \"", name, "\" is not in the vocabulary");
    return found->second;
  };
  const uint64_t pair = uint64_t(uint32_t(id_of(a, first))) << 32 | uint32_t(id_of(b, second));
  const Merge merge{int32_t(merges_.size()), id_of(a + b, first + second)};
  LOCKSTEP_CHECK(merges_.emplace(pair, merge).second, where, ": the pair \"", first, " ", second, "\" appears twice");
}

void Gpt2Tokenizer::add_special(const std::string& token, int64_t id, const std::string& where) {
  LOCKSTEP_CHECK(!token.empty(), where, ": expected a token, got an empty one");
  const bool in_vocab = id >= 0 && size_t(id) < known_.size() && known_[size_t(id)];
  if (in_vocab) {
    LOCKSTEP_CHECK(tokens_[size_t(id)] == token, where, ": id ", id, " is used twice, for \"", tokens_[size_t(id)],
                   "\" and \"", token, "\"");
  } else {
    set_token(id, token, where);
  }
  specials_.emplace_back(token, int32_t(id));
}

/// Longest first, so that the first that matches is the longest.
void Gpt2Tokenizer::sort_specials(const std::string& where) {
  std::sort(specials_.begin(), specials_.end(), [](const auto& a, const auto& b) {
    return a.first.size() != b.first.size() ? a.first.size() > b.first.size() : a < b;
  });
  for (size_t i = 1; i < specials_.size(); ++i)
    LOCKSTEP_CHECK(specials_[i].first != specials_[i - 1].first, where, ": special token \"", specials_[i].first,
                   "\" appears twice");
}

Gpt2Tokenizer Gpt2Tokenizer::from_files(const std::string& vocab_path, const std::string& merges_path) {
  Gpt2Tokenizer result;
  const Json vocab = read_json(vocab_path, {.bytes = max_bytes});
  const std::string text = read_file(merges_path, max_bytes);
  result.add_vocab(vocab, base_error(vocab_path));
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.rfind("#version", 0) == 0) continue;
    const std::string where = str(base_error(merges_path), ":", line_number);
    const size_t space = line.find(' ');
    LOCKSTEP_CHECK(space != line.npos && line.find(' ', space + 1) == line.npos, where,
                   ": expected two tokens with a space between, got \"", line, "\"");
    result.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  if (const Json* end_of_text = vocab.find("<|endoftext|>"))
    result.add_special("<|endoftext|>", end_of_text->as_int(), base_error(vocab_path));
  return result;
}

Gpt2Tokenizer Gpt2Tokenizer::from_tokenizer_json(const std::string& path) {
  Gpt2Tokenizer result;
  const std::string where = base_error(path);
  const Json file = read_json(path, {.bytes = max_bytes});
  const Json& model = file.at("model", where);
  if (const Json* type = model.find("type"))
    LOCKSTEP_CHECK(type->as_string(where + ": model.type") == "BPE", where, ": model.type: expected BPE, got ",
                   type->as_string());
  for (const char* key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"})
    expect_neutral(model, key, where + ": model");
  expect_neutral(file, "normalizer", where);
  const Json& words = file.at("pre_tokenizer", where);
  const Json* type = words.find("type");
  const Json* regex = words.find("use_regex");
  LOCKSTEP_CHECK(type && type->is_string() && type->as_string() == "ByteLevel" && (!regex || *regex == Json(true)),
                 where, ": pre_tokenizer: expected type ByteLevel with use_regex, got ", words.dump().substr(0, 200));
  expect_neutral(words, "add_prefix_space", where + ": pre_tokenizer");

  result.add_vocab(model.at("vocab", where + ": model"), where + ": model.vocab");
  int64_t index = 0;
  for (const Json& merge : model.at("merges", where + ": model").as_array(where + ": model.merges")) {
    const std::string place = str(where, ": model.merges[", index++, "]");
    if (merge.is_array()) {
      LOCKSTEP_CHECK(merge.as_array().size() == 2, place, ": expected two tokens, got ", merge.as_array().size());
      result.add_merge(merge.as_array()[0].as_string(place), merge.as_array()[1].as_string(place), place);
    } else {
      const std::string& both = merge.as_string(place);
      const size_t space = both.find(' ');
      LOCKSTEP_CHECK(space != both.npos && both.find(' ', space + 1) == both.npos, place,
                     ": expected two tokens with a space between, got \"", both, "\"");
      result.add_merge(both.substr(0, space), both.substr(space + 1), place);
    }
  }
  if (const Json* added = file.find("added_tokens")) {
    index = 0;
    for (const Json& token : added->as_array(where + ": added_tokens")) {
      const std::string place = str(where, ": added_tokens[", index++, "]");
      for (const char* key : {"single_word", "lstrip", "rstrip"}) expect_neutral(token, key, place);
      result.add_special(token.at("content", place).as_string(place + ".content"),
                         token.at("id", place).as_int(place + ".id"), place);
    }
  }
  result.sort_specials(where);
  return result;
}

Gpt2Tokenizer Gpt2Tokenizer::from_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path base(folder), whole = base / "tokenizer.json", vocab = base / "vocab.json",
                               merges = base / "merges.txt";
  if (fs::exists(whole)) return from_tokenizer_json(whole.string());
  LOCKSTEP_CHECK(fs::exists(vocab) && fs::exists(merges),
                 "[tokenizer] expected tokenizer.json, or vocab.json and merges.txt, in ", folder, ", found neither");
  return from_files(vocab.string(), merges.string());
}

namespace {
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json", "merges.txt"};
constexpr int64_t kTokenizerBytes = int64_t(1) << 30;
}  // namespace

bool has_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  return !folder.empty() && (fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/vocab.json"));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  if (folder.empty()) return std::make_unique<ByteTokenizer>();
  LOCKSTEP_CHECK(std::filesystem::is_directory(folder), "[tokenizer] ", folder,
                 ": expected a folder with tokenizer.json, or vocab.json and merges.txt; there is no such folder");
  return std::make_unique<Gpt2Tokenizer>(Gpt2Tokenizer::from_folder(folder));
}

std::string tokenizer_identity(const std::string& folder) {
  if (folder.empty()) return "bytes";
  std::string all;
  for (const char* file : kTokenizerFiles) {
    if (!std::filesystem::exists(folder + "/" + file)) continue;
    const std::string text = read_file(folder + "/" + file, kTokenizerBytes);
    all += str(all.empty() ? "" : ", ", file, " ", text.size(), " bytes, crc ",
               crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
  }
  return all;
}

void copy_tokenizer(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  if (from.empty() || (fs::exists(to) && fs::equivalent(from, to))) return;
  fs::create_directories(to);
  for (const char* file : kTokenizerFiles) {
    const std::string path = from + "/" + file;
    if (fs::exists(path)) write_atomically(to + "/" + file, read_file(path, kTokenizerBytes));
  }
}

}  // namespace lockstep::data
