// Generation by models with experts, and by models that ranks share.
#include <doctest/doctest.h>

#include "extensions/generation/generate.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("generate: experts in a GPT") {
  nn::GPT model({.vocab = 11, .context = 6, .layers = 2, .width = 8, .heads = 2});
  moe::add_experts(model, {.experts = 4,
                           .top_k = 2,
                           .drop_tokens = false,
                           .second_expert_sampling = false,
                           .balance_coef = 0.05,
                           .z_coef = 0.01});
  CHECK(nn::generate(model, std::vector<int64_t>(2), {.max_new_tokens = 3}).tokens.size() == 3);
}

TEST_CASE("generate: tensor-parallel ranks generate the text of one rank") {
  constexpr int64_t vocab = 29;
  const nn::GPT::Options o{.vocab = vocab, .context = 24, .layers = 2, .width = 48, .heads = 24, .dropout = 0.2};
  const auto seeded = [&] {
    manual_seed(11);
    nn::GPT model(o);
    model.to(f64);
    return model;
  };
  const std::vector<int64_t> prompt = ids(3, {1, 5}, vocab).to_vector<int64_t>();
  const nn::Generation greedy{.max_new_tokens = 30, .overflow = nn::Generation::Overflow::slide};
  nn::GPT full = seeded();
  const std::vector<int64_t> said = nn::generate(full, prompt, greedy).tokens;
  on_ranks(3, [&](dist::ProcessGroup& g) {
    for (const bool sequence : {false, true}) {
      nn::GPT model = seeded();
      const auto cut = tensor_parallel::apply(model, g, {.sequence = sequence});
      if (!sequence) LOCKSTEP_CHECK(nn::generate(model, prompt, greedy).tokens == said, "expected the same text");
      else
        CHECK_ERROR(nn::generate(model, prompt, greedy),
                    "[scatter_to] expected a size that 3 ranks divide along dim -2");
    }
  });
}

TEST_CASE("generate: a model with context parallelism is rejected") {
  on_ranks(2, [&](dist::ProcessGroup& g) {
    nn::GPT model({.vocab = 17, .context = 16, .layers = 2, .width = 16, .heads = 4});
    sequence::share_sequences(model, g.new_group({0, 1}, "context"));
    CHECK_ERROR(nn::generate(model, std::vector<int64_t>(8), {.max_new_tokens = 1}),
                "a KV cache needs whole sequences");
    sequence::take_sequences(model);
  });
}
