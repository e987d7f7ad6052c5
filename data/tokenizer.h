#pragma once
// Tokenizers: text to ids and back. Extensions read them from files.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

/// Options of Tokenizer::encode().
struct EncodeOptions {
  bool add_special = true;  ///< true: add the tokens that the tokenizer puts around a text, such as a leading <s>
  /// true: special tokens written in the text become their ids. false: they are plain text, as user input should be.
  bool parse_special = false;
};

/// Interface of all tokenizers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab_size() const = 0;                                        ///< largest id + 1
  virtual bool knows(int64_t id) const { return id >= 0 && id < vocab_size(); }  ///< true if the id exists
  /// The ids below `vocab` that no token has. A model may have more rows than its tokenizer has ids, and files may
  /// leave ids out.
  std::vector<int64_t> unknown(int64_t vocab) const;
  /// The ids of a text, which may contain any bytes.
  virtual std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const = 0;
  /// The text of ids, always valid UTF-8. Special tokens are left out, or written by name if skip_special is false.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;
  /// The bytes of a token, which may end inside a character. Error if the id is unknown.
  virtual std::string_view token_bytes(int32_t id) const = 0;
  /// True for a special token, such as <s>.
  virtual bool is_special(int32_t) const { return false; }
  virtual std::optional<int32_t> bos() const { return std::nullopt; }  ///< token that begins a text
  virtual std::optional<int32_t> eos() const { return std::nullopt; }  ///< token that ends a text
  /// The last position at which this text, the beginning of a longer one, may be cut: the ids of the part before it,
  /// followed by the ids of the rest, equal the ids of the longer text, whatever its continuation (without special
  /// tokens around them). 0 if no such position is known.
  virtual size_t last_cut(std::string_view) const { return 0; }
  /// The ids of a training text as an i32 tensor, for TextDataset and TokenBatches. Special tokens that are written in
  /// the text become their ids. No special token is added.
  Tensor encode_tensor(std::string_view text) const;

 protected:
  friend class Decoder;
  virtual int spaces_to_strip() const { return 0; }       ///< leading spaces that decoding removes
  virtual bool marks_each_byte() const { return false; }  ///< true: invalid UTF-8 gives a U+FFFD per byte
};

/// Decodes ids one at a time. The texts from push() and flush(), joined, equal decode() of all ids. The tokenizer must
/// outlive the Decoder.
class Decoder {
 public:
  /// Decodes ids of `tokenizer`. skip_special: true leaves special tokens out of the text.
  explicit Decoder(const Tokenizer& tokenizer, bool skip_special = true);
  /// The characters completed by this id; "" for none. Bytes that can no longer become a character give U+FFFD.
  std::string push(int32_t id);
  /// Ends the text. Returns U+FFFD if the last character is incomplete, else "".
  std::string flush();

 private:
  void write(bool last, std::string& out);
  const Tokenizer& tokenizer_;
  bool skip_special_;
  int strip_;
  std::string waiting_;
};

/// A tokenizer with one token for each of the 256 values of a byte.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const override;
  std::string_view token_bytes(int32_t id) const override;
  size_t last_cut(std::string_view text) const override { return text.size(); }
};

}  // namespace lockstep::data
