// Training steps that are recorded once and replayed: the same bits as eager steps, and the reasons why a step runs
// eagerly.
#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "nn/linear.h"
#include "nn/norm.h"
#include "tests/cuda/graph_training.h"
#include "tests/models.h"

using namespace lockstep;
using namespace testing;

TEST_CASE(
    "step graphs: bit-identical to steps run one by one, with dropout, in every stage, dtype and way of counting") {
  const nn::GPT::Options llama = as_llama({.vocab = 17, .context = 8, .layers = 2, .width = 16, .heads = 4});
  nn::GPT::Options recomputed = Plan().model;
  recomputed.checkpoint_blocks = true;
  nn::GPT::Options still = Plan().model;
  still.dropout = 0;
  const std::pair<const char*, Plan> rows[] = {
      {"plain", {}},
      {"no dropout", {.model = still}},
      {"clipped", {.clipping = 0.3}},
      {"accumulation", {.accumulation = 3}},
      {"ZeRO 1, accumulation", {.accumulation = 3, .stage = 1}},
      {"ZeRO 2, accumulation", {.accumulation = 2, .stage = 2}},
      {"ZeRO 3, accumulation", {.accumulation = 2, .stage = 3}},
      {"tokens", {.accumulation = 2, .lengths = {8, 5}, .tokens = true}},
      {"bf16", {.autocast = bf16}},
      {"fp8", {.accumulation = 2, .fp8 = true}},
      {"f16, GradScaler", {.autocast = f16, .grad_scaler = true}},
      {"Llama", {.model = llama}},
      {"recomputed", {.model = recomputed}},
      {"activation checkpoints", {.checkpoints = true}},
      {"data in the same memory", {.accumulation = 3, .reuses = true}},
      {"data that draw", {.draws = true}},
  };
  for (const auto& [name, plan] : rows) {
    CAPTURE(name);
    check_replayed(plan);
  }
}

#if defined(SIMT_CPU)
TEST_CASE("step: the head makes loss and gradient together, but scores for a hook that looks at them") {
  const Result together = train({}, false);
  CHECK(together.launches.at("cross_entropy") == 1);
  CHECK(together.launches.count("cross_entropy_grad") == 0);
  Shape observed;
  const Plan watched{.prepare = [&](nn::GPT& m) {
    m.head.after_forward([&](auto&&, auto&&, const Variable& y) { observed = y.shape(); });
  }};
  const Result apart = train(watched, false);
  CHECK(observed == Shape{2, 8, 17});
  CHECK(apart.launches.at("cross_entropy_grad") == 1);
  for (size_t i = 0; i < together.losses.size(); ++i)
    CHECK(together.losses[i] == doctest::Approx(apart.losses[i]).epsilon(1e-5));
}
#endif

TEST_CASE("step graphs: two shapes, also if the rope table grows, and the limit of shapes") {
  Plan plan{.steps = 12, .lengths = {4, 4, 4, 8, 4, 8}};
  CHECK(contains(both(plan).graphs, "2 shapes recorded, 10 of 12 steps"));
  plan.model.rope = nn::Rope{};
  CHECK(contains(both(plan).graphs, "2 shapes recorded, 10 of 12 steps"));
  const Result r = both({.steps = 12, .lengths = {8, 7, 6, 5, 4, 3}});
  CHECK_MESSAGE(contains(r.graphs, "4 shapes recorded, 4 of 12 steps replayed; the others: only the first 4 "),
                r.graphs);
  CHECK(r.said == std::vector<std::string>{"steps run without graphs: only the first 4 shapes of steps are recorded"});
}

TEST_CASE("step graphs: f16 with steps that are skipped, replayed ones among them") {
  // Two shapes of steps; each graph holds gradient buffers of its own.
  const Result r = both({.steps = 12, .lengths = {8, 8, 4}, .half = true});
  CHECK(contains(r.graphs, "2 shapes recorded, 10 of 12"));
  REQUIRE(!r.skipped_steps.empty());
  CHECK(r.skipped_steps.back() > 1);
  CHECK(r.skipped_steps.size() < 10);
}

TEST_CASE("step graphs: a checkpoint in the middle, saved and resumed with them or without") {
  const Result full = train({.steps = 7}, false);
  for (const bool saves : {true, false})
    for (const bool resumes : {true, false}) {
      const TempDir folder;
      train({.steps = 3, .saves = folder.path.string()}, saves);
      const Result rest = train({.steps = 4, .loads = folder.path.string()}, resumes);
      CHECK(std::equal(rest.losses.begin(), rest.losses.end(), full.losses.begin() + 3));
      for (size_t i = 0; i < full.state.size(); ++i)
        CHECK_MESSAGE(equal(full.state[i].second, rest.state[i].second), full.state[i].first);
    }
}

TEST_CASE("step graphs: steps that are not recorded, and why") {
  const std::pair<Plan, const char*> rows[] = {
      {{.breakdown = true}, "wall_clock_breakdown measures its parts"},
      {{.average = 0.9}, "no average is kept"},
      {{.prepare = [](nn::GPT& m) { m.blocks[1].after_forward([](auto&&...) {}); }}, "calls of blocks.1 have hooks"},
      {{.prepare = [](nn::GPT& m) { m.tokens_table.weight.on_grad([](const Tensor& g) { return g * 0.5; }); }},
       "the gradient of tokens.weight has hooks"},
      {{.loss = on_loss([](const Variable& loss) { loss.item(); })}, "a step cannot be recorded: "},
      {{.loss = on_loss([](const Variable&) { next_random_key(); })}, "drawn on cpu:0 would be the same"},
      {{.loss = on_loss([](const Variable&) { ones({2}, {.device = cpu}); })}, "CPU operations are not replayed"},
  };
  for (const auto& [plan, reason] : rows) {
    CAPTURE(reason);
    const Result r = both(plan);
    CHECK_MESSAGE(contains(r.graphs, reason), r.graphs);
    CHECK(r.graphs.starts_with("none: "));
    REQUIRE(r.said.size() == 1);
    CHECK(contains(r.said[0], reason));
  }
}

namespace {

/// Its forward writes to buffers, and it changes its mode between steps.
struct Normed : nn::Layer<Normed> {
  nn::Linear a{{.in = 5, .out = 8}}, b{{.in = 8, .out = 3}};
  nn::BatchNorm1d norm{{.channels = 8}};
  Variable forward(const Variable& x) { return b(relu(norm(a(x)))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("norm", norm); }
};

}  // namespace

TEST_CASE("step graphs: buffers that forward writes, and a model that is changed between steps") {
  const auto run = [](bool graphs) {
    manual_seed(2);
    auto net = std::make_shared<Normed>();
    net->to(cuda0);
    optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
    engine::Config config{.train_micro_batch_size_per_gpu = 4};
    engine::EngineBase e(
        {.model = net, .loss_fn = [](const auto& out, const auto& y) { return cross_entropy(out[0], y[0]); }},
        {.optimizer = &optimizer, .config = config, .log = [](const auto&) {}, .graphs = graphs});
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) {
      if (step == 4) net->norm.train(false);  // needs a new recording
      if (step == 8) net->norm.train();
      losses.push_back(e.train_batch([](int64_t) {
        return pipeline::Sample{{randn({4, 5}, there)}, {randint(0, 3, {4}, {.dtype = i64, .device = cuda0})}};
      }));
      if (step % 5 == 4)
        losses.push_back(e.eval_batch([](int64_t) {
          return pipeline::Sample{{ones({4, 5}, there)}, {zeros({4}, {.dtype = i64, .device = cuda0})}};
        }));
    }
    nn::State state;
    for (const auto& [name, tensor] : net->state()) state.emplace_back(name, tensor.to(cpu));
    return std::tuple{losses, state, e.graphs()};
  };
  const auto [losses, state, graphs] = run(true);
  const auto [eager_losses, eager_state, off] = run(false);
  CHECK(losses == eager_losses);
  for (size_t i = 0; i < state.size(); ++i)
    CHECK_MESSAGE(equal(state[i].second, eager_state[i].second), state[i].first);
  CHECK_MESSAGE(contains(graphs, "1 shape recorded, 9 of 12"), graphs);
}
