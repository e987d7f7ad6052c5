// A GPT with experts in place of its MLPs. Training on several ranks is in tests/zero/experts_test.cpp and
// tests/engine/plans_test.cpp.
#include <doctest/doctest.h>

#include "parallel/moe/expert_parallel.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr nn::GPT::Options sizes{.vocab = 11, .context = 6, .layers = 2, .width = 8, .heads = 2};
const moe::MoeOptions experts{.experts = 4,
                              .top_k = 2,
                              .drop_tokens = false,
                              .second_expert_sampling = false,
                              .balance_coef = 0.05,
                              .z_coef = 0.01};

}  // namespace

TEST_CASE("experts in a GPT: names, sizes, rejected options") {
  nn::GPT model(sizes);
  moe::add_experts(model, experts);
  CHECK(moe::layers_of(model).size() == 1);
  std::set<std::string> names;
  for (const auto& p : model.named_parameters()) names.insert(p.name);
  CHECK(names.count("blocks.0.mlp.up.weight") == 1);
  CHECK(names.count("blocks.1.mlp.experts.3.down.bias") == 1);
  CHECK(names.count("blocks.1.mlp.up.weight") == 0);
  CHECK(names.count("blocks.1.mlp.gate") == 1);
  CHECK(moe::expert_names(model).empty());
  nn::GPT::Options gated = sizes;  // experts have the architecture of the block's MLP
  gated.feed_forward = nn::FeedForward::swiglu, gated.mlp_bias = false;
  nn::GPT llama(gated);
  moe::add_experts(llama, experts);
  names.clear();
  for (const auto& p : llama.named_parameters())
    if (p.name.starts_with("blocks.1.mlp.experts.3.")) names.insert(p.name.substr(23));
  CHECK(names == std::set<std::string>{"down.weight", "gate.weight", "up.weight"});
  nn::GPT plain(sizes);
  CHECK(!nn::own_loss(plain).defined());
  CHECK_ERROR(moe::add_experts(plain, experts, 3), "expected `every` from 1 to 2, the number of blocks, got 3");
  nn::GPT::Options again = sizes;
  again.checkpoint_blocks = true;
  nn::GPT rerun(again);
  moe::add_experts(rerun, experts);
  CHECK_ERROR(rerun(zeros({1, 2}, {.dtype = i64})), "checkpoint_blocks does not support experts");
  CHECK_ERROR(moe::add_experts(rerun, experts), "expected a model without experts, got one whose block 1 has some");
}
