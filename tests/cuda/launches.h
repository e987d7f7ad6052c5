#pragma once
// The kernels that a GPT's step starts, counted by the emulator.
#include <map>
#include <string>

#include "nn/models/gpt.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/cudasim/fake.h"

namespace testing {

using namespace lockstep;

using Launches = std::map<std::string, int64_t>;

constexpr int64_t batch = 2;

inline nn::GPT::Options sized(nn::GPT::Options o, int64_t layers) {
  o.vocab = 96, o.context = 16, o.width = 32, o.heads = 2, o.layers = layers;
  return o;
}
inline nn::GPT::Options llama() {
  return {.kv_heads = 1,
          .norm = nn::Norm::rms,
          .feed_forward = nn::FeedForward::swiglu,
          .rope = nn::Rope{},
          .tied = false,
          .bias = false};
}

inline Launches launches_of_step(const nn::GPT::Options& o, DType dtype) {
  manual_seed(1);
  nn::GPT model(o);
  model.to(dtype).to(cuda0);
  const Tensor tokens = randint(0, o.vocab, {batch, o.context}, {.dtype = i64, .device = cpu}).to(cuda0),
               targets = randint(0, o.vocab, {batch, o.context}, {.dtype = i64, .device = cpu}).to(cuda0);
  for (int pass = 0; pass < 2; ++pass) {  // the first pass also fills caches such as rotary tables
    model.zero_grad();
    synchronize(cuda0);
    fake::take_launches();
    model.loss(tokens, targets).backward();
    synchronize(cuda0);
  }
  return fake::take_launches();
}

inline std::string text_of(const Launches& launches) {
  std::string text;
  for (const auto& [name, count] : launches) text += name + " " + std::to_string(count) + ", ";
  return text;
}

inline int64_t sum_of(const Launches& launches) {
  int64_t sum = 0;
  for (const auto& [name, count] : launches) sum += count;
  return sum;
}

}  // namespace testing
