// A GPT with experts, over expert and data groups: gradients, clipping, accumulation and training as in one process.
#include <doctest/doctest.h>

#include "nn/generate.h"
#include "optim/clip.h"
#include "optim/optim.h"
#include "parallel/moe/expert_parallel.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr nn::GPT::Options sizes{.vocab = 11, .context = 6, .layers = 2, .width = 8, .heads = 2};
const moe::Options experts{.experts = 4,
                           .top_k = 2,
                           .drop_tokens = false,
                           .second_expert_sampling = false,
                           .balance_coef = 0.05,
                           .z_coef = 0.01};

std::unique_ptr<nn::GPT> make(const std::shared_ptr<dist::ProcessGroup>& group = nullptr, int64_t every = 2) {
  manual_seed(1);
  auto model = std::make_unique<nn::GPT>(sizes);
  moe::add_experts(*model, experts, every, group);
  model->to(f64);
  return model;
}

struct Data {
  Tensor tokens, targets;
};
Data batch(int64_t step, int64_t micro) {
  manual_seed(77);
  set_random_step(uint64_t(step), uint64_t(micro));
  const Tensor tokens = randint(0, 11, {2, 6});
  return {tokens, randint(0, 11, {2, 6})};
}
Variable loss_of(nn::GPT& model, int64_t step, int64_t micro) {
  const Data d = batch(step, micro);
  const Variable loss = model.loss(d.tokens, d.targets);
  return add(loss, nn::own_loss(model));
}

}  // namespace

TEST_CASE("a GPT with experts trains over expert and data groups as in one process") {
  constexpr int micros = 4, steps = 3;
  for (const auto& [ranks, parallel, every] :
       {std::tuple{1, 1, 2}, {2, 2, 2}, {4, 2, 1}, {4, 4, 2}, {4, 1, 2}, {2, 1, 1}}) {
    CAPTURE(ranks);
    CAPTURE(parallel);
    auto whole = make(nullptr, every);
    optim::AdamW whole_opt(whole->parameters(), {.lr = 1e-2});
    std::vector<double> norms;
    Tensors gradients;
    for (int step = 0; step < steps; ++step) {
      for (int micro = 0; micro < micros; ++micro) mul_scalar(loss_of(*whole, step, micro), 1.0 / micros).backward();
      if (step == 0) gradients = copy_gradients(*whole);
      norms.push_back(optim::clip_grad_norm(whole->parameters(), 0.3));
      whole_opt.step();
      whole_opt.zero_grad();
    }
    const Tensors end = copy_parameters(*whole);
    on_ranks<int>(ranks, [&](int rank) {
      const moe::Groups groups = moe::make_groups(dist::world(), parallel);
      CHECK(groups.expert->size() == parallel);
      CHECK(groups.expert->rank() == rank % parallel);
      auto model = make(groups.expert, every);
      moe::DataParallel ddp(*model, groups, dist::world());
      optim::AdamW opt(model->parameters(), {.lr = 1e-2});
      const int mine = micros / ranks;
      for (int step = 0; step < steps; ++step) {
        for (int i = 0; i < mine; ++i) {
          std::optional<moe::DataParallel::NoSync> no_sync;
          if (i + 1 < mine) no_sync.emplace(ddp);
          ddp.call([&] { return mul_scalar(loss_of(*model, step, rank * mine + i), 1.0 / mine); }).backward();
        }
        if (step == 0)
          for (const auto& [name, g] : copy_gradients(*model))
            CHECK_MESSAGE(distance({{name, g}}, {{name, gradients.at(name)}}) < 1e-12, name);
        CHECK(ddp.clip_grad_norm(0.3) == doctest::Approx(norms[size_t(step)]).epsilon(1e-11));
        opt.step();
        opt.zero_grad();
      }
      for (const auto& [name, p] : copy_parameters(*model))
        CHECK_MESSAGE(distance({{name, p}}, {{name, end.at(name)}}) < 1e-9, name);
      return 0;
    });
  }
}

TEST_CASE("experts in a GPT: names, sizes, generation, what is refused") {
  auto model = make();
  CHECK(moe::layers_of(*model).size() == 1);
  std::set<std::string> names;
  for (const auto& p : model->named_parameters()) names.insert(p.name);
  CHECK(names.count("blocks.0.mlp.up.weight") == 1);
  CHECK(names.count("blocks.1.mlp.experts.3.down.bias") == 1);
  CHECK(names.count("blocks.1.mlp.up.weight") == 0);
  CHECK(names.count("blocks.1.mlp.gate") == 1);
  CHECK(nn::generate(*model, std::vector<int64_t>(2), {.max_new_tokens = 3}).tokens.size() == 3);
  CHECK(moe::expert_names(*model).empty());
  nn::GPT::Options gated = sizes;  // experts are what the block has
  gated.feed_forward = nn::FeedForward::swiglu, gated.mlp_bias = false;
  nn::GPT llama(gated);
  moe::add_experts(llama, experts);
  names.clear();
  for (const auto& p : llama.named_parameters())
    if (p.name.starts_with("blocks.1.mlp.experts.3.")) names.insert(p.name.substr(23));
  CHECK(names == std::set<std::string>{"down.weight", "gate.weight", "up.weight"});
  nn::GPT plain(sizes);
  CHECK(!nn::own_loss(plain).defined());
  CHECK(
      contains(message([&] { moe::add_experts(plain, experts, 3); }), "in every 1st to every 2. block, got every 3."));
  nn::GPT::Options again = sizes;
  again.checkpoint_blocks = true;
  nn::GPT rerun(again);
  moe::add_experts(rerun, experts);
  CHECK(contains(message([&] {
                   rerun(zeros({1, 2}, {.dtype = i64}));
                 }),
                 "expected blocks without experts for checkpoint_blocks"));
  CHECK(contains(message([&] { moe::add_experts(rerun, experts); }),
                 "expected a model without experts, got one whose block 1 has some"));
  CHECK(contains(message([] { dist::spawn(3, [](int) { moe::make_groups(dist::world(), 2); }); }),
                 "ranks that divide the 3 ranks of group world, got 2"));
}
