#pragma once
// Long lists of tokens: in memory, or in a file that is mapped, so that a text may be larger than the memory.
//
//   a .tokens file, little-endian
//     header   512 bytes: "LSTOKENS", version, bytes of a token (2 or 4), vocabulary, tokenizer, CRC-32
//     tokens   unsigned
//     end      16 bytes: "LSTEND", "\n\0", number of tokens. A file that was cut lacks it
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "data/tokenizer.h"
#include "tensor/tensor.h"

namespace lockstep::data {

inline constexpr int64_t tokens_header_bytes = 512, tokens_end_bytes = 16;  ///< of a .tokens file

/// A view: copies share the tokens.
class Tokens {
 public:
  Tokens() = default;
  /// 1 dim, u8, i32 or i64, on the CPU; Errors begin with [op].
  Tokens(const Tensor& tokens, const char* op = "tokens");
  int64_t size() const { return size_; }
  int64_t bytes_of_one() const { return kind_ == Kind::u8 ? 1 : kind_ == Kind::u16 ? 2 : kind_ == Kind::i64 ? 8 : 4; }
  Tokens part(int64_t start, int64_t length) const;
  /// Tokens [start, start + count), written to `out`; gives what is behind the last.
  int64_t* copy(int64_t start, int64_t count, int64_t* out) const;
  /// All of them, in memory: i32.
  Tensor tensor() const;
  /// What differs where other ranks have other tokens; of more than 64 MiB, of pieces here and there.
  uint32_t checksum() const;

 private:
  friend Tokens read_tokens(const std::string& path, const Tokenizer& tokenizer, const std::string& identity);
  enum class Kind { u8, u16, u32, i32, i64 };
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  Kind kind_ = Kind::i32;
};

/// Whether a file begins as a .tokens file does.
bool is_token_file(const std::string& path);
/// A .tokens file, mapped. Error unless it is whole, and of this tokenizer (data::tokenizer_identity()).
Tokens read_tokens(const std::string& path, const Tokenizer& tokenizer, const std::string& identity);

struct Tokenized {
  int64_t tokens = 0, bytes = 0;
};
/// Writes the tokens of a text file to a .tokens file, atomically, in the ids of Tokenizer::encode_tensor() of the
/// whole text. It is read in pieces of about `piece` bytes where the tokenizer allows that (Tokenizer::last_cut());
/// else all of it, 4 GiB at most. report: after each piece, with what is done so far.
Tokenized tokenize_file(const std::string& text, const std::string& to, const Tokenizer& tokenizer,
                        const std::string& identity, int64_t piece = int64_t(8) << 20,
                        const std::function<void(const Tokenized&)>& report = {});

}  // namespace lockstep::data
