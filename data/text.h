#pragma once
// Text for language models: long token lists, in memory or in a mapped file, so that a text may be larger than memory
// (tokens.cpp), and windows of them with the next tokens as targets (text.cpp).
//
//   A .tokens file, little-endian:
//
//     header   512 bytes: "LSTOKENS", version, bytes per token (2 or 4), vocabulary size, tokenizer, CRC-32
//     tokens   unsigned integers
//     end      16 bytes: "LSTEND", "\n\0", number of tokens; missing in a truncated file
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "data/dataset.h"
#include "data/tokenizer.h"

namespace lockstep::data {

inline constexpr int64_t tokens_header_bytes = 512, tokens_end_bytes = 16;  ///< sizes in a .tokens file

/// A view of a token list. Copies share the tokens.
class Tokens {
 public:
  Tokens() = default;
  /// Takes the tokens of a CPU tensor of 1 dim: u8, i32 or i64. Errors begin with [op].
  Tokens(const Tensor& tokens, const char* op = "tokens");
  int64_t size() const { return size_; }  ///< number of tokens
  /// Size of a stored token in bytes.
  int64_t bytes_of_one() const { return kind_ == Kind::u8 ? 1 : kind_ == Kind::u16 ? 2 : kind_ == Kind::i64 ? 8 : 4; }
  /// A view of `length` tokens from `start` on.
  Tokens part(int64_t start, int64_t length) const;
  /// Copies tokens [start, start + count) to `out`. Returns the end of what was written.
  int64_t* copy(int64_t start, int64_t count, int64_t* out) const;
  /// All tokens as an i32 tensor in memory.
  Tensor tensor() const;
  /// A CRC-32, to check that all ranks have the same tokens. Beyond 64 MiB it samples 64 pieces instead of all bytes.
  uint32_t checksum() const;

 private:
  friend Tokens read_tokens(const std::string& path, const Tokenizer& tokenizer, const std::string& identity);
  enum class Kind { u8, u16, u32, i32, i64 };
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  Kind kind_ = Kind::i32;
};

/// True if the file begins like a .tokens file.
bool is_token_file(const std::string& path);
/// Maps a .tokens file. Error if it is incomplete or of another tokenizer. identity: from tokenizer_identity().
Tokens read_tokens(const std::string& path, const Tokenizer& tokenizer, const std::string& identity);

/// Numbers of tokens and of bytes of text: the progress of tokenize_file(), and the result.
struct Tokenized {
  int64_t tokens = 0, bytes = 0;
};
/// Tokenizes a text file into a .tokens file, with write_atomically(). The ids equal Tokenizer::encode_tensor()
/// on the whole text. The text is read in pieces of about `piece` bytes if the tokenizer allows that (last_cut()), else
/// as a whole, up to 4 GiB. report() is called after each piece.
Tokenized tokenize_file(const std::string& text, const std::string& to, const Tokenizer& tokenizer,
                        const std::string& identity, int64_t piece = int64_t(8) << 20,
                        const std::function<void(const Tokenized&)>& report = {});

/// A file as u8 tokens (vocabulary 256). Error if it is empty or larger than `max_bytes`.
Tensor read_bytes(const std::string& path, int64_t max_bytes = int64_t(1) << 32);

/// Options of TextDataset.
struct TextOptions {
  int64_t context = 256;  ///< tokens of a sample
  /// Tokens between the starts of samples. Set it to `context` for evaluation, so that each token counts once.
  int64_t stride = 1;
};

/// Sample i is (tokens[a .. a+T-1], tokens[a+1 .. a+T]) as i64, with a = i * stride and T = context.
class TextDataset : public Dataset<Example> {
 public:
  /// Error unless there are more tokens than `context`.
  TextDataset(Tokens tokens, TextOptions options = {});
  /// Takes the tokens of a 1-d tensor: u8, i32 or i64.
  TextDataset(const Tensor& tokens, TextOptions options = {}) : TextDataset(Tokens(tokens, "TextDataset"), options) {}
  int64_t size() const override { return (tokens_.size() - options_.context - 1) / options_.stride + 1; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  Tokens tokens_;
  TextOptions options_;
};

/// Splits tokens for training and validation: the last fraction `part` (0: none) is for validation. Error if one of the
/// two lists is too short for a sample of `context` tokens; `name` is the text's name in the Error.
std::pair<Tokens, Tokens> split_text(const Tokens& tokens, double part, int64_t context, const std::string& name);
/// The sources and docs of this repository as one text, in a fixed order. Looks for the repository at `folder`, then in
/// the current folder and in those above it.
std::string read_sources(const std::string& folder);

/// Random windows for training. The start of row r of micro-batch m in step s depends only on (seed, s, m, r): any rank
/// can make any micro-batch, and a resumed run needs only its step.
class TokenBatches {
 public:
  /// The windows are drawn from `tokens`.
  explicit TokenBatches(Tokens tokens, uint64_t seed = 0) : tokens_(std::move(tokens)), seed_(seed) {}
  explicit TokenBatches(const Tensor& tokens, uint64_t seed = 0) : TokenBatches(Tokens(tokens, "TokenBatches"), seed) {}
  /// Input and target, both i64 (batch, context). Error unless there are more tokens than `context`.
  Example sample(int64_t step, int64_t micro_batch, int64_t batch, int64_t context) const;

 private:
  Tokens tokens_;
  uint64_t seed_;
};

}  // namespace lockstep::data
