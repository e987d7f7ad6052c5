// Encodes text by byte-pair encoding: see bpe.h. bpe_tables.cpp builds the tables, tokenizer_json.cpp reads the files.
#include "extensions/hugging_face/bpe.h"

#include "base/printable.h"
#include "extensions/hugging_face/unicode.h"

namespace lockstep::data {

// The largest factor by which normalization may lengthen a text. The limit guards against a corrupt tokenizer.json.
constexpr size_t max_growth = 64;

/// State of one encode() call. Words repeat often, so their ids are cached.
struct BpeTokenizer::Work {
  static constexpr size_t longest_kept = 64, max_kept = 1 << 16;

  std::vector<int32_t>& out;
  std::vector<int32_t> ids;  // one token id per character of the current word
  bool unknown_before = false;
  std::unordered_map<std::string, std::vector<int32_t>, TextHash, std::equal_to<>> kept;
};

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> out;
  if (options.add_special) out = rules_.before;
  Work work{.out = out, .ids = {}, .kept = {}};
  cut_first_.cut(text, options.parse_special, [&](std::string_view plain, int32_t id) {
    if (id >= 0) return out.push_back(id);
    const bool changed = !rules_.normalizers.empty();
    const std::string normal = changed ? normalize(plain) : "";
    const std::string_view all = changed ? normal : plain;
    cut_normalized_.cut(all, options.parse_special, [&](std::string_view piece, int32_t id_there) {
      if (id_there >= 0) return out.push_back(id_there);
      encode_piece(piece, plain.data() == text.data() && piece.data() == all.data(), work);
    });
  });
  if (options.add_special) out.insert(out.end(), rules_.after.begin(), rules_.after.end());
  return out;
}

/// Finds the last space or newline that follows a letter or number. Every supported regular expression ends a word
/// right before it, whatever comes later, so the two parts of the text can be encoded separately.
size_t BpeTokenizer::last_cut(std::string_view text) const {
  if (!rules_.words || !rules_.byte_level || cut_first_.takes_spaces() || cut_normalized_.takes_spaces()) return 0;
  for (const Normalizer& step : rules_.normalizers)
    if (step.kind != Normalizer::Kind::nfc) return 0;
  for (size_t at = text.size(); at-- > 1;) {
    if (text[at] != ' ' && text[at] != '\n') continue;
    const CharClass kind = class_of(last_character(text.substr(0, at)));
    if (kind == CharClass::letter || kind == CharClass::number) return at;
  }
  return 0;
}

std::string BpeTokenizer::normalize(std::string_view text) const {
  std::string result(text);
  for (const Normalizer& step : rules_.normalizers) {
    if (step.kind == Normalizer::Kind::nfc) result = to_nfc(result);
    else if (step.kind == Normalizer::Kind::prepend) result = result.empty() ? result : step.text + result;
    else result = replaced(result, step.text, step.by);
    LOCKSTEP_CHECK(result.size() <= max_growth * text.size() + (1 << 20),
                   "[tokenizer] expected a normalised text of at most ", max_growth, " times the bytes of the text, ",
                   text.size(), ", got ", result.size(), "; check the normalizer in tokenizer.json");
  }
  return result;
}

std::string BpeTokenizer::replaced(const std::string& text, const std::string& from, const std::string& by) {
  std::string result;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size())
    result.append(text, at, found - at) += by;
  return result.append(text, at);
}

void BpeTokenizer::encode_piece(std::string_view piece, bool at_start, Work& work) const {
  if (rules_.words) {
    for (size_t at = 0, end; at < piece.size(); at = end) {
      end = word_end(*rules_.words, piece, at);
      encode_word(piece.substr(at, end - at), work);
    }
    return;
  }
  if (!rules_.metaspace) return encode_word(piece, work);
  std::string text;
  for (const char c : piece) c == ' ' ? text += rules_.space : text += c;
  const bool prepend = rules_.prepend == Prepend::always || (rules_.prepend == Prepend::first && at_start);
  if (prepend && text.rfind(rules_.space, 0) != 0) text.insert(0, rules_.space);
  if (!rules_.split) return encode_word(text, work);
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = std::min(text.find(rules_.space, at + 1), text.size());
    encode_word(std::string_view(text).substr(at, end - at), work);
  }
}

void BpeTokenizer::encode_word(std::string_view word, Work& work) const {
  if (rules_.ignore_merges)
    if (const auto found = ids_.find(word); found != ids_.end()) return work.out.push_back(found->second);
  work.ids.clear();
  work.ids.reserve(word.size());
  work.unknown_before = false;
  for (size_t at = 0, bytes; at < word.size(); at += bytes) {
    const Char c = rules_.byte_level ? Char{uint8_t(word[at])} : decode_utf8(word, at);
    bytes = size_t(c.bytes);
    int32_t id = -1;
    if (rules_.byte_level) id = byte_ids_[c.code];
    else if (const auto found = character_ids_.find(c.code); c.valid && found != character_ids_.end())
      id = found->second;
    if (id < 0) append_unknown(word.substr(at, bytes), work);
    else {
      work.ids.push_back(id);
      work.unknown_before = false;
    }
  }
  // Split the word between neighbouring characters that no merge joins. The pieces repeat often; merge() caches them.
  const std::span<int32_t> ids(work.ids);
  for (size_t start = 0, end; start < ids.size(); start = end) {
    end = start + 1;
    while (end < ids.size() && joined_.find(ends_[size_t(ids[end - 1])].last, ends_[size_t(ids[end])].first) >= 0)
      ++end;
    merge(ids.subspan(start, end - start), work);
  }
}

/// Appends the tokens of the character's bytes, or the unknown token. With fuse_unknown, a run of unknown characters
/// gives one token.
void BpeTokenizer::append_unknown(std::string_view character, Work& work) const {
  bool all = rules_.byte_fallback;
  for (const char c : character) all = all && byte_ids_[uint8_t(c)] >= 0;
  if (all) {
    for (const char c : character) work.ids.push_back(byte_ids_[uint8_t(c)]);
    work.unknown_before = false;
    return;
  }
  LOCKSTEP_CHECK(rules_.unknown >= 0, "[tokenizer] the vocabulary has no token for ",
                 rules_.byte_level ? str("byte ", int(uint8_t(character[0]))) : str("\"", one_line(character), "\""),
                 ", which the text contains; take it out, or use a tokenizer with an unknown token");
  if (!work.unknown_before || !rules_.fuse_unknown) work.ids.push_back(rules_.unknown);
  work.unknown_before = true;
}

void BpeTokenizer::merge(std::span<int32_t> ids, Work& work) const {
  if (ids.size() == 1) return work.out.push_back(ids[0]);
  const auto append = [&](std::span<const int32_t> merged) {
    work.out.insert(work.out.end(), merged.begin(), merged.end());
  };
  if (ids.size() > Work::longest_kept) return append(ids.first(merges_.apply(ids)));
  const std::string_view key(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  if (const auto found = work.kept.find(key); found != work.kept.end()) return append(found->second);
  std::string name(key);
  const auto merged = ids.first(merges_.apply(ids));
  append(merged);
  if (work.kept.size() < Work::max_kept) work.kept.emplace(std::move(name), std::vector(merged.begin(), merged.end()));
}

std::string_view BpeTokenizer::token_bytes(int32_t id) const {
  LOCKSTEP_CHECK(id >= 0 && size_t(id) < tokens_.size(), "[tokenizer] expected ids from 0 to ",
                 int64_t(tokens_.size()) - 1, ", got ", id, "; give ids that this tokenizer made");
  LOCKSTEP_CHECK(knows(id), "[tokenizer] the vocabulary has no token with id ", id, "; use ids that encode() returned");
  return tokens_[size_t(id)].text;
}

int32_t BpeTokenizer::special(const std::string& token) const {
  if (const auto found = added_.find(token); found != added_.end()) return found->second;
  std::string all;
  for (const auto& [name, id] : added_)
    if (all.size() < 500) all += (all.empty() ? "" : ", ") + name;
  fail(str("[tokenizer] no special token ", token, "; ",
           all.empty() ? "add it to added_tokens" : "there are: " + all + "; name one of these"));
}

}  // namespace lockstep::data
