// A transformer whose layers are divided among ranks, in f64: values and every gradient.
#include <doctest/doctest.h>

#include "extensions/layers/transformer.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/devices.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

TEST_CASE_FIXTURE(OnCpu, "a transformer, with masks and dropout") {
  const auto make = [] {
    manual_seed(5);
    auto model = std::make_unique<nn::Transformer>(nn::Transformer::Options{
        .width = 16, .heads = 4, .encoder_layers = 1, .decoder_layers = 1, .inner = 12, .dropout = 0.2});
    model->to(f64);
    return model;
  };
  Tensor padding = zeros({2, 5}, {.dtype = boolean});
  padding.select(0, 1).narrow(0, 3, 2).fill_(1);
  const nn::Transformer::Masks masks{
      .source = {.padding = padding}, .target = {.causal = true}, .memory = {.mask = values(3, {2 * 4, 3, 5})}};
  const Tensor source = values(1, {5, 2, 16}), target = values(2, {3, 2, 16}), up = values(4, {3, 2, 16});
  const auto entire = make();
  const Variable all_source = leaf(source), all_target = leaf(target);
  set_random_step(1);
  const Variable out = (*entire)(all_source, all_target, masks);
  out.backward(up);
  for (const int n : {2, 4}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      const auto model = make();
      const auto cut = tp::apply(*model, g);
      LOCKSTEP_CHECK(model->decoder.stack[0].multihead_attn.in_proj.weight.size(0) == 3 * 16 / n, "it is cut");
      const Variable own_source = leaf(source), own_target = leaf(target);
      set_random_step(1);
      const Variable y = (*model)(own_source, own_target, masks);
      expect_near(y.tensor(), out.tensor(), "output");
      y.backward(up);
      expect_near(own_source.grad(), all_source.grad(), "gradient of the source");
      expect_near(own_target.grad(), all_target.grad(), "gradient of the target");
      const auto all_parameters = entire->named_parameters(), mine = model->named_parameters();
      for (size_t i = 0; i < mine.size(); ++i) {
        const auto* const shard = cut.find(mine[i].variable);
        const Tensor all = all_parameters[i].variable.grad();
        expect_near(mine[i].variable.grad(), shard ? tp::shard_of(all, shard->cut, n, g.rank()) : all,
                    "gradient of " + mine[i].name);
      }
    });
  }
}
