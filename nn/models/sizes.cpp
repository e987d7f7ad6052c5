// Options of models by name, such as gpt:12x768x12. See gpt.h.
#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

GPT::Options gpt_options(const std::string& text, const GPT::Options& usual, const std::string& others) {
  int64_t numbers[3];
  const bool llama = text.starts_with("llama:");
  bool good = llama || text.starts_with("gpt:");
  const char *at = text.data() + std::min<size_t>(llama ? 6 : 4, text.size()), *const end = text.data() + text.size();
  for (int i = 0; i < 3 && good; ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    good = error == std::errc() && numbers[i] >= 1 && numbers[i] <= 1'000'000 && (i == 2 ? stop == end : *stop == 'x');
    at = stop + 1;
  }
  LOCKSTEP_CHECK(good, "expected a model as gpt:LAYERSxWIDTHxHEADS or llama:LAYERSxWIDTHxHEADS, such as gpt:12x768x12",
                 others, ", got \"", text, "\"");
  GPT::Options o = usual;
  o.layers = numbers[0], o.width = numbers[1], o.heads = numbers[2];
  LOCKSTEP_CHECK(o.width % o.heads == 0, text, ": expected a width that is a multiple of its ", o.heads, " heads, got ",
                 o.width);
  if (!llama) return o;
  LOCKSTEP_CHECK(o.width / o.heads % 2 == 0, text, ": expected an even WIDTH / HEADS, got ", o.width / o.heads);
  o.norm = Norm::rms, o.norm_eps = 1e-5, o.feed_forward = nn::FeedForward::swiglu, o.rope = Rope{};
  o.bias = o.tied = false;
  o.inner = (8 * o.width / 3 + 255) / 256 * 256;  // the inner size of Llama
  return o;
}

}  // namespace lockstep::nn
