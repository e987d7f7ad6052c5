#pragma once
// Tokenizers: text to ids and back.
//
//   GPT-2 cuts text into words by one regular expression, then merges the bytes of each word, best pair first:
//   "the cat" -> "the", " cat" -> t h e | _ c a t -> th e | _ ca t -> the | _cat -> ids
//   Sennrich et al. 2016 (arXiv 1508.07909); Radford et al. 2019 for bytes.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

class Json;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab_size() const = 0;  ///< one more than the largest id
  /// Any bytes are text; decode(encode(text)) is text again.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Error when an id is unknown.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// The ids as an i32 tensor, for TextDataset and TokenBatches.
  Tensor encode_tensor(std::string_view text) const;
};

/// Each byte is its own token.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
};

/// GPT-2's pre-tokenisation, 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+, as views into
/// text.
std::vector<std::string_view> split_words(std::string_view text);

/// Byte-level BPE, with the ids of Hugging Face's GPT2Tokenizer. Special tokens that stand in the text become their
/// ids.
class Gpt2Tokenizer : public Tokenizer {
 public:
  /// vocab.json and merges.txt.
  static Gpt2Tokenizer from_files(const std::string& vocab_path, const std::string& merges_path);
  /// tokenizer.json. Error when it asks for something that this tokenizer does not do.
  static Gpt2Tokenizer from_tokenizer_json(const std::string& path);
  /// A folder with tokenizer.json, or with vocab.json and merges.txt.
  static Gpt2Tokenizer from_folder(const std::string& folder);

  int64_t vocab_size() const override { return int64_t(tokens_.size()); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  /// The id of a special token such as <|endoftext|>; Error lists those there are.
  int32_t special(const std::string& token) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  void add_vocab(const Json& vocab, const std::string& where);
  void add_merge(const std::string& first, const std::string& second, const std::string& where);
  void add_special(const std::string& token, int64_t id, const std::string& where);
  void sort_specials(const std::string& where);
  void set_token(int64_t id, std::string bytes, const std::string& where);
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;

  std::unordered_map<std::string, int32_t> ids_;           // by bytes; not the special ones
  std::vector<std::string> tokens_;                        // bytes by id
  std::vector<bool> known_;                                // ids that exist: there may be gaps
  std::unordered_map<uint64_t, Merge> merges_;             // by pair of ids
  std::vector<std::pair<std::string, int32_t>> specials_;  // longest first
  std::array<int32_t, 256> byte_ids_{};
};

/// The tokenizer in a folder, an Error when it has none; bytes when no folder is named ("").
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);
bool has_tokenizer(const std::string& folder);
/// What is the same for the same tokenizer: "bytes", or sizes and checksums of its files.
std::string tokenizer_identity(const std::string& folder);
/// Copies its files, so that nothing depends on where they were.
void copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace lockstep::data
