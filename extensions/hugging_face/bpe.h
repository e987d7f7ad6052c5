#pragma once
// Byte-pair encoding with the same ids as Hugging Face's tokenizers, in its two usual forms:
//
//   byte-level (GPT-2, Llama 3, Qwen 2): a regular expression cuts the text into words, and the bytes of each word are
//   merged, best pair first:
//
//     "the cat"  ->  "the" | " cat"  ->  t h e | _ c a t  ->  th e | _ ca t  ->  the | _cat  ->  ids
//
//   SentencePiece-like (Llama 1 and 2, Mistral): spaces become U+2581, and the characters of the whole text are merged.
//   A character without a token is written as the tokens of its bytes, <0xC3> <0xA9>.
//
// Sennrich et al. 2016 (arXiv 1508.07909); Radford et al. 2019 for bytes; Kudo and Richardson 2018 (1808.06226).
#include <array>
#include <map>
#include <string>
#include <unordered_map>

#include "data/tokenizer.h"
#include "extensions/hugging_face/added_tokens.h"
#include "extensions/hugging_face/merges.h"
#include "extensions/hugging_face/split_words.h"

namespace lockstep::data {

class Json;

/// A BPE tokenizer, loaded from Hugging Face's or GPT-2's files.
class BpeTokenizer : public Tokenizer {
 public:
  /// Reads GPT-2's vocab.json and merges.txt.
  static BpeTokenizer from_files(const std::string& vocab_path, const std::string& merges_path);
  /// Like from_files(), but takes vocabulary and added tokens from `file`, laid out as in tokenizer.json. vocab_path
  /// only appears in Errors.
  static BpeTokenizer from_vocab(const Json& file, const std::string& vocab_path, const std::string& merges_path);
  /// Reads tokenizer.json. Error if the file asks for a feature that this class does not implement.
  static BpeTokenizer from_tokenizer_json(const std::string& path);
  /// Makes a tokenizer from a parsed tokenizer.json. Errors begin with `where`.
  static BpeTokenizer from_json(const Json& file, const std::string& where);
  /// Applies bos_token, eos_token, add_bos_token and add_eos_token of a tokenizer_config.json. Error, beginning with
  /// `where`, if a token is not in the vocabulary.
  void configure(const Json& tokenizer_config, const std::string& where);

  int64_t vocab_size() const override { return int64_t(tokens_.size()); }
  bool knows(int64_t id) const override { return id >= 0 && id < vocab_size() && tokens_[size_t(id)].known; }
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::string_view token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override { return knows(id) && tokens_[size_t(id)].special; }
  size_t last_cut(std::string_view text) const override;
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  /// The id of an added token such as <|endoftext|>. For an unknown token, the Error lists known ones.
  int32_t special(const std::string& token) const;

 protected:
  int spaces_to_strip() const override { return rules_.strip; }
  bool marks_each_byte() const override { return !rules_.byte_level; }

 private:
  friend struct RulesReader;
  struct Normalizer {
    enum class Kind { prepend, replace, nfc } kind;
    std::string text, by;
  };
  enum class Prepend { never, first, always };
  /// The settings of a tokenizer file, apart from tokens and merges. The defaults are GPT-2's.
  struct Rules {
    std::vector<Normalizer> normalizers;
    bool byte_level = true, ignore_merges = false;
    std::optional<WordPattern> words = WordPattern::gpt2;  // none: the text is one word
    // metaspace: true replaces each space by the string `space`. split: true begins a new word at each `space`.
    bool metaspace = false, split = false;
    std::string space;
    Prepend prepend = Prepend::never;
    bool byte_fallback = false, fuse_unknown = false;
    int32_t unknown = -1;
    // decode_to replaces decode_from in each token, before byte tokens are decoded and leading spaces are stripped.
    std::string decode_from, decode_to;
    bool decode_bytes = false;
    int strip = 0;
    std::vector<int32_t> before, after;  // ids put before and after a text
  };
  struct Token {
    std::string text;
    bool known = false, special = false;  // known: the id exists; ids may have gaps
  };
  struct Ends {
    uint32_t first, last;  // a token's first and last character: code points, or bytes if byte-level
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct Work;

  void add_vocab(const Json& vocab, const std::string& where);
  void add_merge(const std::string& both, const std::string& where);
  void add_merge(const std::string& first, const std::string& second, const std::string& where);
  void add_tokens(const Json& file, const std::string& origin);
  void add_token(AddedToken token, bool normalized, const std::string& where);
  void set_token(int64_t id, std::string text, const std::string& where);
  void finish(const std::string& where);
  bool spell(const std::string& token, std::string& text) const;
  Ends ends_of(std::string_view text) const;
  std::optional<int32_t> id_of(const std::string& token) const;

  static std::string replaced(const std::string& text, const std::string& from, const std::string& by);
  std::string normalize(std::string_view text) const;
  void encode_piece(std::string_view piece, bool at_start, Work& work) const;
  void encode_word(std::string_view word, Work& work) const;
  void append_unknown(std::string_view character, Work& work) const;
  void merge(std::span<int32_t> ids, Work& work) const;

  Rules rules_;
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> ids_;  // vocabulary, keyed by bytes or text
  std::vector<Token> tokens_;                                                // by id
  std::vector<Ends> ends_;
  std::map<std::string, int32_t> added_;  // ids of added tokens by name
  AddedTokens cut_first_, cut_normalized_;
  Merges merges_;
  // Pairs (a, b) such that some merge joins a token that ends with character a to one that begins with b.
  PairMap joined_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<uint32_t, int32_t> character_ids_;
  std::optional<int32_t> bos_, eos_;
};

}  // namespace lockstep::data
