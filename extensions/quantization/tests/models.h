#pragma once
// Small models whose weights tests quantise.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "extensions/quantization/quantize.h"
#include "nn/models/gpt.h"
#include "tensor/random.h"

namespace testing {

using namespace lockstep;

inline double largest(const Tensor& a) { return max(abs(a.to(f64))).item(); }
inline double difference_of(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return largest(a.to(f64) - b.to(f64)) / std::max(1.0, largest(b));
}

inline nn::GPT::Options small(bool tied = true) {
  return {.vocab = 50, .context = 32, .layers = 2, .width = 128, .heads = 4, .tied = tied};
}
inline std::unique_ptr<nn::GPT> seeded(const nn::GPT::Options& o) {
  manual_seed(5);
  auto model = std::make_unique<nn::GPT>(o);
  for (auto& p : model->named_parameters())  // larger than the initial values, so that errors show
    if (p.variable.dim() == 2) p.variable.tensor().copy_(p.variable.tensor() * 5);
  model->eval();
  return model;
}
inline Tensor some_tokens(int64_t batch = 2, int64_t length = 20) {
  manual_seed(7);
  return randint(0, 50, {batch, length});
}
/// The model with dequantized weights.
inline std::unique_ptr<nn::GPT> dequantized(nn::GPT& quantized, const nn::GPT::Options& o) {
  auto model = seeded(o);
  for (auto& [name, module] : quantized.named_modules()) {
    auto* const from = dynamic_cast<nn::Linear*>(module);
    if (!from || !nn::quantized_weight(from->attached)) continue;
    for (auto& [other, to] : model->named_modules())
      if (other == name)
        dynamic_cast<nn::Linear&>(*to).weight.tensor().copy_(dequantize(nn::quantized_weight(from->attached)->here()));
  }
  return model;
}

}  // namespace testing
