#pragma once
// Long token lists, in memory or in a mapped file, so that a text may be larger than memory.
//
//   A .tokens file, little-endian:
//
//     header   512 bytes: "LSTOKENS", version, bytes per token (2 or 4), vocabulary size, tokenizer, CRC-32
//     tokens   unsigned integers
//     end      16 bytes: "LSTEND", "\n\0", number of tokens; missing in a truncated file
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "data/tokenizer.h"
#include "tensor/tensor.h"

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

}  // namespace lockstep::data
