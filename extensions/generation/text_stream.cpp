// TextStream: UTF-8 characters and stop strings in a stream of bytes. See text_stream.h.
#include "extensions/generation/text_stream.h"

#include <algorithm>

#include "data/utf8.h"

namespace lockstep::nn {

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
  const std::string_view bytes = std::string_view(held_).substr(0, count);
  std::string text;
  size_t at = 0;
  while (at < count) {
    const size_t begun = data::utf8_begun(bytes, at), length = std::max<size_t>(begun, 1);
    if (data::decode_utf8(bytes, at).valid) text += bytes.substr(at, length);
    else if (!last && at + begun == count) break;
    else text += "\xef\xbf\xbd";
    at += length;
  }
  held_.erase(0, at);
  return text;
}

}  // namespace lockstep::nn
