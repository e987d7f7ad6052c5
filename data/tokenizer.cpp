// Decoding, and the byte tokenizer. See tokenizer.h.
#include "data/tokenizer.h"

#include <array>

#include "data/utf8.h"

namespace lockstep::data {

Tensor Tokenizer::encode_tensor(std::string_view text) const {
  const auto ids = encode(text, {.add_special = false, .parse_special = true});
  return Tensor::from(ids, {int64_t(ids.size())});
}

std::vector<int64_t> Tokenizer::unknown(int64_t vocab) const {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < vocab; ++id)
    if (!knows(id)) ids.push_back(id);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Decoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text += decoder.flush();
}

Decoder::Decoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), strip_(tokenizer.spaces_to_strip()) {}

std::string Decoder::push(int32_t id) {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  std::string out;
  if (skip_special_ && tokenizer_.is_special(id)) return out;
  waiting_ += bytes;
  write(false, out);
  return out;
}

std::string Decoder::flush() {
  std::string out;
  write(true, out);
  return out;
}

void Decoder::write(bool last, std::string& out) {
  size_t at = 0;
  while (at < waiting_.size()) {
    const Char c = decode_utf8(waiting_, at);
    if (c.valid) {
      if (strip_ > 0 && waiting_[at] == ' ') --strip_;
      else {
        out.append(waiting_, at, size_t(c.bytes));
        strip_ = 0;
      }
      at += size_t(c.bytes);
      continue;
    }
    const size_t begun = utf8_begun(waiting_, at);
    if (!last && at + begun == waiting_.size()) break;
    const size_t bytes = std::max<size_t>(begun, 1);
    for (size_t i = 0; i < (tokenizer_.marks_each_byte() ? bytes : 1); ++i) append_utf8(out, 0xfffd);
    strip_ = 0;
    at += bytes;
  }
  waiting_.erase(0, at);
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, EncodeOptions) const {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(uint8_t(c));
  return ids;
}

std::string_view ByteTokenizer::token_bytes(int32_t id) const {
  static const auto bytes = [] {
    std::array<char, 256> all{};
    for (size_t i = 0; i < 256; ++i) all[i] = char(i);
    return all;
  }();
  LOCKSTEP_CHECK(id >= 0 && id < 256, "[tokenizer] expected ids from 0 to 255, got ", id);
  return {&bytes[size_t(id)], 1};
}

}  // namespace lockstep::data
