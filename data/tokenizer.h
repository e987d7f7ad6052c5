#pragma once
// Tokenizers: text to ids and back. docs/tokenizers.md says which files of Hugging Face's are read.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

struct EncodeOptions {
  bool add_special = true;  ///< what the tokenizer puts around a text, such as <s> in front
  /// Special tokens that stand in the text become their ids. Not for what a user types: there they are text.
  bool parse_special = false;
};

class Tokenizer {
 public:
  /// A folder with tokenizer.json, or with vocab.json and merges.txt; and tokens that stand beside them, in
  /// tokenizer_config.json or added_tokens.json. What kind it is, the files say. Error when they ask for something that
  /// is not supported, by its name.
  static std::unique_ptr<Tokenizer> from_folder(const std::string& folder);
  virtual ~Tokenizer() = default;
  virtual int64_t vocab_size() const = 0;  ///< one more than the largest id
  virtual bool knows(int64_t id) const { return id >= 0 && id < vocab_size(); }
  /// The ids below `vocab` that it does not know: models have rows beyond their tokenizer's ids, and files have gaps.
  std::vector<int64_t> unknown(int64_t vocab) const;
  /// Any bytes are text.
  virtual std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const = 0;
  /// The text of ids, as Decoder writes it: UTF-8 always, special tokens left out or written by name.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  /// What a token stands for, which need not be whole characters. Error when the id is unknown.
  virtual std::string_view token_bytes(int32_t id) const = 0;
  virtual bool is_special(int32_t) const { return false; }
  virtual std::optional<int32_t> bos() const { return std::nullopt; }  ///< begins a text
  virtual std::optional<int32_t> eos() const { return std::nullopt; }  ///< ends a text
  /// The last place where this text may be cut, whatever follows it, so that the ids of the parts are those of the
  /// whole (without special tokens around them): 0 when none is known, or the tokenizer looks at a text as a whole.
  virtual size_t last_cut(std::string_view) const { return 0; }
  /// A text for training, as an i32 tensor for TextDataset and TokenBatches: special tokens that stand in it become
  /// their ids, none is added.
  Tensor encode_tensor(std::string_view text) const;

 protected:
  friend class Decoder;
  virtual int spaces_to_strip() const { return 0; }  ///< that decoding leaves out at the very beginning
  virtual bool marks_each_byte() const { return false; }
};

/// Ids to text as they come. What push() and flush() give, one after the other, is decode() of all the ids.
/// The tokenizer must outlive it.
class Decoder {
 public:
  explicit Decoder(const Tokenizer& tokenizer, bool skip_special = true);
  /// The whole characters that are complete with this id, "" when there are none. Bytes that can no longer become a
  /// character are U+FFFD.
  std::string push(int32_t id);
  /// What is left at the end: U+FFFD for the beginning of a character.
  std::string flush();

 private:
  void write(bool last, std::string& out);
  const Tokenizer& tokenizer_;
  bool skip_special_;
  int strip_;
  std::string waiting_;
};

/// Each byte is its own token.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::string_view token_bytes(int32_t id) const override;
  size_t last_cut(std::string_view text) const override { return text.size(); }
};

/// Tokenizer::from_folder(), or bytes when no folder is named ("").
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);
bool has_tokenizer(const std::string& folder);
/// A text by which tokenizers are told apart: "bytes", or the sizes and checksums of the files and the tokens that
/// stand beside them.
std::string tokenizer_identity(const std::string& folder);
/// Copies its files and its chat templates, so that nothing depends on where they were; those of another one go.
void copy_tokenizer(const std::string& from, const std::string& to);

}  // namespace lockstep::data
