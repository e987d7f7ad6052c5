// Token lists, and the reading and writing of .tokens files. See text.h.
#include "data/text.h"

#include <zlib.h>

#include <algorithm>

#include "data/excerpt.h"
#include "data/file_calls.h"
#include "data/files.h"
#include "data/little_endian.h"
#include "data/open_file.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kTokensMagic = "LSTOKENS", kTokensEnd = std::string_view("LSTEND\n\0", 8);
constexpr int64_t kHeaderBytes = tokens_header_bytes, kEndBytes = tokens_end_bytes, kIdentityAt = 24,
                  kCrcAt = kHeaderBytes - 4;
constexpr int64_t kMaxTextBytes = int64_t(4) << 30;  // limit for a text that cannot be read in pieces

uint32_t crc_of(Bytes bytes, uint32_t start = 0) {
  return uint32_t(crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string header_of(int bytes, int64_t vocabulary, const std::string& identity) {
  LOCKSTEP_CHECK(int64_t(identity.size()) <= kCrcAt - kIdentityAt,
                 "[tokens] expected a tokenizer's identity of at most ", kCrcAt - kIdentityAt, " bytes, got ",
                 identity.size(), "; pass the result of tokenizer_identity()");
  std::string header(kTokensMagic);
  append_little(header, 1, 4), append_little(header, uint64_t(bytes), 4),
      append_little(header, uint64_t(vocabulary), 8);
  header += identity;
  header.resize(size_t(kCrcAt), '\0');
  append_little(header, crc_of(as_bytes(header)), 4);
  return header;
}

/// Calls each(piece) for the pieces of a file, cut where the tokenizer allows cuts. If the tokenizer allows none, calls
/// each() once, with the whole text.
void cut_text(const std::string& path, const Tokenizer& tokenizer, int64_t piece,
              const std::function<void(std::string_view)>& each) {
  OpenFile file;
  open_regular(file, path, INT64_MAX);
  std::string text;
  for (bool ended = false; !ended;) {
    ended = !append_next(file, text, size_t(piece), path);
    const size_t cut = ended ? text.size() : tokenizer.last_cut(text);
    if (cut > 0) each(std::string_view(text).substr(0, cut));
    text.erase(0, cut);
    LOCKSTEP_CHECK(int64_t(text.size()) <= kMaxTextBytes, "[tokenize] ", path, ": expected a text of at most ",
                   kMaxTextBytes,
                   " bytes, because this tokenizer reads a text as a whole, got more; split it into several files");
  }
}

}  // namespace

Tokens::Tokens(const Tensor& tokens, const char* op) {
  LOCKSTEP_CHECK(tokens.defined() && tokens.dim() == 1 && tokens.device().is_cpu(), "[", op,
                 "] expected a list of tokens (1 dim, cpu), got ",
                 tokens.defined() ? str(tokens.shape(), " on ", tokens.device(), "; flatten() it, or use .to(cpu)")
                                  : "an undefined tensor; give one with tokens");
  LOCKSTEP_CHECK(tokens.dtype() == u8 || tokens.dtype() == i32 || tokens.dtype() == i64, "[", op,
                 "] expected u8, i32 or i64 tokens, got ", tokens.dtype(), "; convert them with .to(i64)");
  const auto kept = std::make_shared<const Tensor>(tokens.contiguous());
  kind_ = tokens.dtype() == u8 ? Kind::u8 : tokens.dtype() == i32 ? Kind::i32 : Kind::i64;
  size_ = kept->numel();
  if (size_ > 0) data_ = static_cast<const std::byte*>(kept->raw_data());
  owner_ = kept;
}

Tokens Tokens::part(int64_t start, int64_t length) const {
  LOCKSTEP_CHECK(start >= 0 && length >= 0 && start <= size_ - length, "[tokens] expected a part of ", size_,
                 " tokens, got ", length, " from ", start, " on");
  Tokens some = *this;
  some.data_ += start * bytes_of_one();
  some.size_ = length;
  return some;
}

int64_t* Tokens::copy(int64_t start, int64_t count, int64_t* out) const {
  const std::byte* from = data_ + start * bytes_of_one();
  const auto as = [&](auto zero) { return std::copy_n(reinterpret_cast<const decltype(zero)*>(from), count, out); };
  switch (kind_) {
    case Kind::u8: return as(uint8_t());
    case Kind::u16: return as(uint16_t());
    case Kind::u32: return as(uint32_t());
    case Kind::i32: return as(int32_t());
    default: return as(int64_t());
  }
}

Tensor Tokens::tensor() const {
  const Tensor all = empty({size_}, {.dtype = i32, .device = cpu});
  int64_t some[1024];
  for (int64_t at = 0; at < size_; at += 1024) {
    const int64_t count = std::min<int64_t>(size_ - at, 1024);
    copy(at, count, some);
    for (int64_t i = 0; i < count; ++i) all.data<int32_t>()[at + i] = int32_t(some[i]);
  }
  check_mapped_files();
  return all;
}

uint32_t Tokens::checksum() const {
  constexpr int64_t hashed = int64_t(64) << 20, pieces = 64, piece = hashed / pieces;
  const int64_t all = size_ * bytes_of_one();
  uint32_t crc = 0;
  if (all <= hashed) crc = crc_of({data_, size_t(all)});
  for (int64_t i = 0; all > hashed && i < pieces; ++i)
    crc = crc_of({data_ + (all - piece) / (pieces - 1) * i, size_t(piece)}, crc);
  check_mapped_files();
  return crc;
}

bool is_token_file(const std::string& path) {
  OpenFile file;
  open_regular(file, path, INT64_MAX);
  char start[8] = {};
  return ::pread(file.fd, start, sizeof start, 0) == ssize_t(sizeof start) &&
         std::string_view(start, sizeof start) == kTokensMagic;
}

Tokens read_tokens(const std::string& path, const Tokenizer& tokenizer, const std::string& identity) {
  const std::string where = "[tokens] " + path;
  const auto file = MappedFile::open(path);
  const Bytes all = file->bytes();
  const auto text = [&](int64_t at, int64_t count) {
    return std::string_view(reinterpret_cast<const char*>(all.data()) + at, size_t(count));
  };
  const int64_t size = file->size();
  LOCKSTEP_CHECK(size >= kHeaderBytes && text(0, 8) == kTokensMagic, where,
                 ": expected a .tokens file written by `gpt tokenize`; write one with it");
  LOCKSTEP_CHECK(little(all, size_t(kCrcAt), 4) == crc_of(all.first(size_t(kCrcAt))), where,
                 ": the header is damaged: its checksum does not match; write the file again");
  const uint64_t version = little(all, 8, 4), bytes = little(all, 12, 4), vocabulary = little(all, 16, 8);
  LOCKSTEP_CHECK(version == 1 && (bytes == 2 || bytes == 4), where,
                 ": expected version 1, tokens of 2 or 4 bytes, got ", version, " and ", bytes,
                 "; write the file again with `gpt tokenize`");
  const std::string_view made_by = text(kIdentityAt, kCrcAt - kIdentityAt);
  const std::string made = std::string(made_by.substr(0, made_by.find('\0')));
  const int64_t rest = size - kHeaderBytes - kEndBytes;
  LOCKSTEP_CHECK(rest >= 0 && text(size - kEndBytes, 8) == kTokensEnd &&
                     little(all, size_t(size - 8), 8) == uint64_t(rest) / bytes && uint64_t(rest) % bytes == 0,
                 where, ": the end record is missing or wrong in ", size,
                 " bytes (is the file truncated?); write it again with `gpt tokenize`");
  LOCKSTEP_CHECK(made == identity && vocabulary == uint64_t(tokenizer.vocab_size()), where,
                 ": expected tokens of the tokenizer (", identity, "; ", tokenizer.vocab_size(),
                 " tokens), got those of (", excerpt(made), "; ", vocabulary,
                 " tokens); write them again with `gpt tokenize`");
  Tokens tokens;
  tokens.kind_ = bytes == 2 ? Tokens::Kind::u16 : Tokens::Kind::u32;
  tokens.data_ = file->data() + kHeaderBytes;
  tokens.size_ = rest / int64_t(bytes);
  tokens.owner_ = file;
  return tokens;
}

Tokenized tokenize_file(const std::string& text, const std::string& to, const Tokenizer& tokenizer,
                        const std::string& identity, int64_t piece,
                        const std::function<void(const Tokenized&)>& report) {
  LOCKSTEP_CHECK(piece >= 1, "[tokenize] expected pieces of at least 1 byte, got ", piece);
  const int bytes = tokenizer.vocab_size() <= 65536 ? 2 : 4;
  Tokenized done;
  write_atomically(to, [&](NewFile& file) {
    file.append(as_bytes(header_of(bytes, tokenizer.vocab_size(), identity)));
    std::string packed;
    cut_text(text, tokenizer, piece, [&](std::string_view part) {
      const auto ids = tokenizer.encode(part, {.add_special = false, .parse_special = true});
      packed.clear();
      for (const int32_t id : ids) append_little(packed, uint64_t(id), bytes);
      file.append(as_bytes(packed));
      done.tokens += int64_t(ids.size());
      done.bytes += int64_t(part.size());
      if (report) report(done);
    });
    LOCKSTEP_CHECK(done.tokens > 0, "[tokenize] expected a text, got an empty file: ", text, "; give a file with text");
    std::string end(kTokensEnd);
    append_little(end, uint64_t(done.tokens), 8);
    file.append(as_bytes(end));
  });
  return done;
}

}  // namespace lockstep::data
