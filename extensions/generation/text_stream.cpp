// TextStream: UTF-8 characters and stop strings in a stream of bytes. See text_stream.h.
#include "extensions/generation/text_stream.h"

#include <algorithm>

namespace lockstep::nn {

namespace {

/// Length of the UTF-8 character that begins with `first`; 0 if it cannot begin one.
size_t character_bytes(unsigned char first) {
  return first < 0x80                    ? 1
         : first >= 0xc2 && first < 0xe0 ? 2
         : first >= 0xe0 && first < 0xf0 ? 3
         : first >= 0xf0 && first < 0xf5 ? 4
                                         : 0;
}

/// True if `second` may follow `first`: excludes overlong forms, surrogates and code points above U+10FFFF.
bool second_fits(unsigned char first, unsigned char second) {
  const unsigned char low = first == 0xe0   ? 0xa0
                            : first == 0xf0 ? 0x90
                                            : 0x80,
                      high = first == 0xed   ? 0x9f
                             : first == 0xf4 ? 0x8f
                                             : 0xbf;
  return second >= low && second <= high;
}

}  // namespace

std::string TextStream::push(const std::string& bytes) {
  if (stopped_) return "";
  held_ += bytes;
  size_t end = std::string::npos;
  for (const std::string& s : stop_) end = std::min(end, held_.find(s));
  if (end != std::string::npos) {
    stopped_ = true;
    const std::string text = take(end, true);
    held_.clear();
    return text;
  }
  size_t hold = 0;  // longest suffix that begins a stop string
  for (const std::string& s : stop_)
    for (size_t n = std::min(s.size() - 1, held_.size()); n > hold; --n)
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) hold = n;
  return take(held_.size() - hold, false);
}

std::string TextStream::flush() { return take(held_.size(), true); }

/// Removes the first `count` bytes and returns them as text. Unless `last`, an incomplete character at the end stays.
std::string TextStream::take(size_t count, bool last) {
  std::string text;
  size_t at = 0;
  while (at < count) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(held_[i]); };
    const size_t wanted = character_bytes(byte(at));
    size_t have = 1;
    while (have < wanted && at + have < count &&
           (have == 1 ? second_fits(byte(at), byte(at + 1)) : (byte(at + have) & 0xc0) == 0x80))
      ++have;
    if (have == wanted) text.append(held_, at, wanted);
    else if (!last && wanted > 0 && at + have == count) break;
    else text += "\xef\xbf\xbd";
    at += have;
  }
  held_.erase(0, at);
  return text;
}

}  // namespace lockstep::nn
