// nn::GPT as layers: wherever it is cut, inside blocks too, what the model itself gives.
#include <doctest/doctest.h>

#include "parallel/buckets.h"
#include "pipeline/gpt.h"
#include "tensor/ops.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

constexpr int gpt_micro_batches = 2;

std::shared_ptr<nn::GPT> small_gpt(double dropout) {
  manual_seed(3);
  return std::make_shared<nn::GPT>(nn::GPT::Options{.vocab = 13, .context = 6, .layers = 2, .width = 8, .heads = 2, .dropout = dropout});
}

Tensor tokens_of(int64_t micro, int64_t shift) {
  std::vector<int64_t> x;
  for (int64_t i = 0; i < 2 * 6; ++i) x.push_back((5 * micro + 7 * (i + shift) + i * i) % 13);
  return Tensor::from(x, {2, 6});
}

/// The loss and every gradient by name, of the whole model.
Tensors whole_gpt(double dropout) {
  const auto model = small_gpt(dropout);
  parallel::GradientAccumulator sum(model->parameters());
  double loss = 0;
  for (int m = 0; m < gpt_micro_batches; ++m) {
    set_random_step(0, uint64_t(m));
    const Variable one = model->loss(tokens_of(m, 0), tokens_of(m, 1));
    one.backward();
    loss += one.item() / gpt_micro_batches;
    sum.add();
  }
  sum.finish();
  Tensors all{{"loss", Tensor::from(std::vector<double>{loss}, {1})}};
  for (auto& p : model->named_parameters()) {
    mul_scalar_(p.variable.grad(), 1. / gpt_micro_batches);
    all[p.name] = p.variable.grad();
  }
  return all;
}

}  // namespace

TEST_CASE("gpt as layers: every cut has the bits of the whole model") {
  CHECK(gpt_layers(small_gpt(0)).size() == size_t(gpt_layer_count(2)));
  for (const double dropout : {0., 0.2}) {
    const Tensors expected = whole_gpt(dropout);
    for (int cut = 1; cut < gpt_layer_count(2); ++cut) {
      for (const bool recompute : {false, true}) {
        CAPTURE(dropout);
        CAPTURE(cut);
        CAPTURE(recompute);
        const auto found = on_ranks<Tensors>(2, [&](int) {
          const auto model = small_gpt(dropout);
          const Loss loss = gpt_loss(*model);
          Engine engine(gpt_layers(model, recompute), {.micro_batches = gpt_micro_batches, .bounds = {0, cut, int(gpt_layer_count(2))}}, loss);
          Tensors all;
          const double value = engine.train_batch([](int64_t m) { return Sample{{tokens_of(m, 0)}, {tokens_of(m, 1)}}; });
          all["loss"] = Tensor::from(std::vector<double>{value}, {1});
          for (auto& p : engine.module().named_parameters()) all[p.name] = p.variable.grad();
          return all;
        });
        size_t seen = 0;
        for (const Tensors& rank : found) {
          for (const auto& [name, tensor] : rank) {
            REQUIRE_MESSAGE(expected.count(name), name);
            CHECK_MESSAGE(equal(tensor, expected.at(name)), name);
          }
          seen += rank.size();
        }
        CHECK(seen >= expected.size() + 1);  // the loss twice, and the tied table
      }
    }
  }
}
