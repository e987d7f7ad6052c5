// A block of a decoder computes sums with dropout and the norms behind them in one pass. It has the bits of the parts
// one after the other, which run where somebody has hooked into a module's calls; on whatever device the tests run on.
#include <doctest/doctest.h>

#include "nn/models/gpt.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

/// Output and all gradients of two blocks; apart: norms or dropouts are listened to.
std::vector<Tensor> results_of(const nn::TransformerBlock::Options& o, DType dtype, bool apart, bool layers) {
  manual_seed(5);
  nn::TransformerBlock first(o), second(o);
  for (nn::TransformerBlock* block : {&first, &second}) {
    block->to(dtype);
    if (apart) block->norm2.before_forward([](nn::Module&, const std::vector<Variable>&) {});
    if (apart) block->dropout.before_forward([](nn::Module&, const std::vector<Variable>&) {});
  }
  const Variable x(randn({2, 5, o.width}).to(dtype), true);
  manual_seed(6);
  Variable y = x;
  if (layers) {
    for (nn::TransformerBlock* block : {&first, &second}) {
      const nn::LayerList list = block->layers();
      for (const auto& layer : list.items) y = layer.forward({y})[0];
    }
  } else {
    y = second(first(x));
  }
  sum(y * y).backward();
  std::vector<Tensor> all{y.tensor(), x.grad()};
  for (nn::TransformerBlock* block : {&first, &second})
    for (const Variable& p : block->parameters()) all.push_back(p.grad());
  return all;
}

}  // namespace

TEST_CASE("block: sums and norms in one pass have the bits of one after the other") {
  for (const DType dtype : {f32, bf16, f16, f64}) {
    for (const double dropout : {0., 0.3}) {
      for (const nn::Norm::Kind kind : {nn::Norm::layer, nn::Norm::rms}) {
        const nn::TransformerBlock::Options o{
            .width = 16, .heads = 2, .bias = kind == nn::Norm::layer, .dropout = dropout, .norm = kind};
        CAPTURE(dtype);
        CAPTURE(dropout);
        CAPTURE(int(kind));
        const std::vector<Tensor> together = results_of(o, dtype, false, false);
        for (const auto& [apart, layers] : {std::pair{true, false}, {false, true}}) {
          const std::vector<Tensor> other = results_of(o, dtype, apart, layers);
          REQUIRE(other.size() == together.size());
          for (size_t i = 0; i < other.size(); ++i) CHECK(equal(other[i], together[i]));
        }
      }
    }
  }
}
