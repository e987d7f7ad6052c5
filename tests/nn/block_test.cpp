// A decoder block fuses residual sums with dropout and the following norm, or, without dropout, with the preceding
// product. If a hook is attached to one of the modules, the parts run separately, with the same bits except for the
// rounding of a product that is fused with a sum. Runs on the default device of the tests.
#include <doctest/doctest.h>

#include "nn/models/gpt.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

/// The output and all gradients of two blocks. apart: hooks on norms and dropouts prevent fusion.
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

TEST_CASE("block: a fused sum and norm is bit-identical to the sum and then the norm") {
  for (const DType dtype : {f32, bf16, f16, f64}) {
    for (const double dropout : {0., 0.3}) {
      for (const nn::Norm::Kind kind : {nn::Norm::layer, nn::Norm::rms}) {
        const nn::TransformerBlock::Options o{
            .width = 16, .heads = 2, .bias = kind == nn::Norm::layer, .dropout = dropout, .norm = kind};
        INFO(dtype, ", dropout ", dropout, ", norm ", int(kind));
        const std::vector<Tensor> together = results_of(o, dtype, false, false);
        for (const auto& [apart, layers] : {std::pair{true, false}, {false, true}}) {
          const std::vector<Tensor> other = results_of(o, dtype, apart, layers);
          REQUIRE(other.size() == together.size());
          const bool exact = layers || dropout > 0 || (size_of(dtype) >= 4 && default_device().is_cpu());
          const double loose = exact ? 0 : dtype == bf16 ? 0.06 : dtype == f16 ? 0.01 : 1e-5;
          for (size_t i = 0; i < other.size(); ++i)
            CHECK(
                allclose(other[i].to(f64), together[i].to(f64), loose, loose * amax(abs(together[i].to(f64))).item()));
        }
      }
    }
  }
}

TEST_CASE("block: a hook that looks at a layer gets that layer's output, and one that does not changes no bits") {
  for (const DType dtype : {f32, bf16}) {
    manual_seed(5);
    nn::TransformerBlock block({.width = 16, .heads = 2});
    block.to(dtype);
    const Variable x(randn({2, 5, 16}).to(dtype));
    Tensor sum, output;
    block.norm2.before_forward([&](nn::Module&, const std::vector<Variable>& in) { sum = in[0].tensor(); });
    const Tensor plain = block(x).tensor();
    nn::Module* const layers[] = {&block.attention, &block.attention.out_proj, &block.mlp, &block.mlp.down};
    for (nn::Module* const layer : layers) {
      CAPTURE(layer->kind());
      const bool is_first = layer == layers[0] || layer == layers[1];
      int id = layer->after_forward_all([](auto&&...) {}, false);
      CHECK(equal(block(x).tensor(), plain));
      layer->remove_hook(id);
      id = layer->after_forward(
          [&](nn::Module&, const std::vector<Variable>&, const Variable& y) { output = y.tensor(); });
      const Tensor y = block(x).tensor();
      CHECK(equal(is_first ? add(x.tensor(), output) : add(sum, output), is_first ? sum : y));
      layer->remove_hook(id);
      CHECK(equal(block(x).tensor(), plain));
    }
    block.dropout.p = 0.5;
    block.eval();
    CHECK(equal(block(x).tensor(), plain));
  }
}
