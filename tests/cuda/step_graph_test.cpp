// Training steps that are recorded once and replayed: the bits of the same steps run one by one, and the reasons for
// which they are run so.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "autograd/ops.h"
#include "engine/engine.h"
#include "nn/container.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "nn/norm.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using testing::TempDir;

namespace {

const Device cuda0{Device::Type::cuda, 0};

struct Plan {
  int64_t accumulation = 1, steps = 6;
  int stage = 0;
  double clipping = 0;
  nn::GPT::Options model{.vocab = 17, .context = 8, .layers = 2, .width = 16, .heads = 2, .dropout = 0.1};
  std::vector<int64_t> lengths{8};  // of micro-batches, in turn
  std::optional<DType> autocast = {};
  bool half = false;    // f16 with a loss scale that grows until gradients overflow
  bool tokens = false;  // losses are sums, divided by the targets of a step
  bool grad_scaler = false;
  bool reuses = false;  // each micro-batch is in the memory of the one before
  bool draws = false;   // data draw numbers of their own, now more, now less
  double average = 0;
  bool breakdown = false;
  bool checkpoints = false;
  bool fp8 = false;
  std::string saves = {}, loads = {};  // folders, at the end and at the start
  std::function<void(nn::GPT&)> prepare = {};
  pipeline::Loss loss = {};
  Device data = cuda0;
};

struct Result {
  std::vector<double> losses, norms;
  nn::State state;
  RandomState random;
  std::vector<int64_t> skipped_steps;
  std::vector<std::string> skips;           // what was said of them
  std::map<std::string, int64_t> launches;  // of the last step
  std::string graphs;
  std::vector<std::string> said;
};

Result train(const Plan& plan, bool graphs) {
  Result result;
  manual_seed(4);
  auto gpt = std::make_shared<nn::GPT>(plan.model);
  gpt->to(cuda0);
  if (plan.prepare) plan.prepare(*gpt);
  optim::AdamW optimizer(gpt->parameters(), {.lr = 0.01, .weight_decay = 0.1});
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  engine::Config config{.train_micro_batch_size_per_gpu = 2,
                        .gradient_accumulation_steps = plan.accumulation,
                        .gradient_clipping = plan.clipping};
  config.zero_optimization.stage = plan.stage;
  config.fp16 = {.enabled = plan.half, .initial_scale_power = 12, .loss_scale_window = 1, .hysteresis = 1};
  config.activation_checkpointing.enabled = plan.checkpoints;
  config.ema.decay = plan.average;
  config.fp8 = {.enabled = plan.fp8, .amax_history_len = 3};
  config.wall_clock_breakdown = plan.breakdown;
  engine::PipelineModule module{.model = gpt, .loss_fn = plan.loss};
  if (plan.tokens)
    module.tokens = [](const std::vector<Tensor>& targets) { return targets[0].numel() - targets[0].size(0); };
  engine::EngineBase e(std::move(module), {.optimizer = &optimizer,
                                           .config = config,
                                           .log =
                                               [&result](const std::string& text) {
                                                 if (text.starts_with("steps run without graphs"))
                                                   result.said.push_back(text);
                                                 if (text.starts_with("step ")) result.skips.push_back(text);
                                               },
                                           .autocast = plan.autocast,
                                           .grad_scaler = plan.grad_scaler ? &scaler : nullptr,
                                           .graphs = graphs});
  if (!plan.loads.empty()) CHECK(e.load_checkpoint(plan.loads).has_value());
  int64_t micro = 0;
  Tensor kept[2];
  for (int64_t step = 0; step < plan.steps; ++step) {
    const int64_t skipped = e.skipped_steps();
    e.set_lr(0.01 / double(e.global_steps() + 1));
    if (plan.clipping > 0) e.set_gradient_clipping(plan.clipping * double(step % 3));
#if defined(SIMT_CPU)
    fake::take_launches();
#endif
    result.losses.push_back(e.train_batch([&](int64_t) {
      const int64_t length = plan.lengths[size_t(micro++) % plan.lengths.size()];
      const Tensor tokens = randint(0, plan.model.vocab, {2, length + 1}, {.dtype = i64, .device = cpu});
      for (int64_t i = 0; plan.draws && i < micro % 3; ++i) next_random_key();
      Tensor parts[2];
      for (int64_t i : {0, 1}) {
        parts[i] = tokens.narrow(1, i, length).contiguous().to(plan.data);
        if (!plan.reuses) continue;
        if (kept[i].defined()) kept[i].copy_(parts[i]);
        else kept[i] = parts[i];
        parts[i] = kept[i];
      }
      return pipeline::Sample{{parts[0]}, {parts[1]}};
    }));
#if defined(SIMT_CPU)
    result.launches.clear();
    for (const auto& [name, count] : fake::take_launches()) result.launches[name] = int64_t(count);
#endif
    result.norms.push_back(e.get_global_grad_norm());
    if (e.skipped_steps() > skipped) result.skipped_steps.push_back(step);
  }
  if (!plan.saves.empty()) e.save_checkpoint(plan.saves);
  result.random = random_state();
  const auto whole = e.zero().gathered();
  for (const auto& [name, tensor] : gpt->state()) result.state.emplace_back(name, tensor.to(cpu).clone());
  result.graphs = e.graphs();
  return result;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check_equal(const Result& a, const Result& b) {
  CHECK(std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same));
  CHECK(std::equal(a.norms.begin(), a.norms.end(), b.norms.begin(), b.norms.end(), same));
  CHECK(a.skipped_steps == b.skipped_steps);
  CHECK(a.skips == b.skips);
  CHECK(a.random == b.random);
  REQUIRE(a.state.size() == b.state.size());
  std::string differing;
  for (size_t i = 0; i < a.state.size(); ++i)
    if (!equal(a.state[i].second, b.state[i].second)) differing += a.state[i].first + " ";
  CHECK(differing == "");
}

/// The runs with and without graphs, which must end with the same bits; gives back the first.
Result both(const Plan& plan) {
  const Result replayed = train(plan, true), eager = train(plan, false);
  CHECK(eager.graphs == "none: they are turned off");
  CHECK(eager.said.empty());
  check_equal(replayed, eager);
  return replayed;
}

}  // namespace

TEST_CASE("step graphs: the bits of steps run one by one, with dropout, in every stage, dtype and way of counting") {
  struct Row {
    const char* name;
    Plan plan;
  };
  nn::GPT::Options llama{.vocab = 17, .context = 8, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2};
  llama.norm = nn::Norm::rms, llama.feed_forward = nn::FeedForward::swiglu, llama.rope = nn::Rope{};
  llama.tied = llama.bias = false;
  nn::GPT::Options recomputed = Plan().model;
  recomputed.checkpoint_blocks = true;
  nn::GPT::Options still = Plan().model;
  still.dropout = 0;
  const Row rows[] = {
      {"plain", {}},
      {"no dropout", {.model = still}},
      {"clipped", {.clipping = 0.3}},
      {"accumulation", {.accumulation = 3}},
      {"ZeRO 1, accumulation", {.accumulation = 3, .stage = 1}},
      {"ZeRO 2, accumulation", {.accumulation = 2, .stage = 2}},
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
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Result r = both(row.plan);
    CHECK(r.graphs == "1 shape recorded, 5 of 6 steps replayed");
    CHECK(r.said.empty());
#if defined(SIMT_CPU)
    // What data, loss scale, random keys, learning rates and fp8's next scales take is all that starts beside the
    // graph.
    int64_t others = 0;
    for (const auto& [name, count] : r.launches) others += name == "graph" ? 0 : count;
    CHECK(r.launches.at("graph") == 1);
    CHECK_MESSAGE(others <= 4 + 10 * row.plan.accumulation + (row.plan.fp8 ? 16 : 0), others);
#endif
    CHECK(r.losses.front() != r.losses.back());
  }
}

TEST_CASE("step graphs: two shapes, also where a table of angles grows, and a limit of shapes") {
  Plan plan{.steps = 12, .lengths = {4, 4, 4, 8, 4, 8}};
  Result r = both(plan);
  CHECK(contains(r.graphs, "2 shapes recorded, 10 of 12 steps"));
  plan.model.rope = nn::Rope{};
  r = both(plan);
  CHECK(contains(r.graphs, "2 shapes recorded, 10 of 12 steps"));
  plan = {.steps = 12, .lengths = {8, 7, 6, 5, 4, 3}};
  r = both(plan);
  CHECK_MESSAGE(contains(r.graphs, "4 shapes recorded, 4 of 12 steps replayed; the others: only the first 4 "),
                r.graphs);
  CHECK(r.said == std::vector<std::string>{"steps run without graphs: only the first 4 shapes of steps are recorded"});
}

TEST_CASE("step graphs: f16 with steps that are skipped, replayed ones among them") {
  // Of two shapes, each of which finds the first parameter in gradients of its own.
  const Result r = both({.steps = 12, .lengths = {8, 8, 4}, .half = true});
  CHECK(contains(r.graphs, "2 shapes recorded, 10 of 12"));
  REQUIRE(!r.skipped_steps.empty());
  CHECK(r.skipped_steps.back() > 1);
  CHECK(r.skipped_steps.size() < 10);
}

TEST_CASE("step graphs: a checkpoint in the middle, saved and resumed with them or without") {
  const Result whole = train({.steps = 7}, false);
  for (const bool saves : {true, false}) {
    for (const bool resumes : {true, false}) {
      const TempDir folder;
      train({.steps = 3, .saves = folder.path.string()}, saves);
      const Result rest = train({.steps = 4, .loads = folder.path.string()}, resumes);
      CHECK(std::equal(rest.losses.begin(), rest.losses.end(), whole.losses.begin() + 3));
      std::string differing;
      for (size_t i = 0; i < whole.state.size(); ++i)
        if (!equal(whole.state[i].second, rest.state[i].second)) differing += whole.state[i].first + " ";
      CHECK(differing == "");
    }
  }
}

TEST_CASE("step graphs: steps that run as they are, and why") {
  struct Row {
    Plan plan;
    const char* reason;
  };
  const auto on_loss = [](std::function<void(const Variable&)> look) {
    return [look](const pipeline::Values& out, const std::vector<Tensor>& targets) {
      const Variable loss = cross_entropy(out[0].reshape({-1, 17}), targets[0].reshape({-1}));
      look(loss);
      return loss;
    };
  };
  const Row rows[] = {
      {{.stage = 3}, "ZeRO 3 fetches parameters"},
      {{.breakdown = true}, "wall_clock_breakdown measures its parts"},
      {{.average = 0.9}, "no average is kept"},
      {{.prepare = [](nn::GPT& m) { m.blocks[1].after_forward([](auto&&...) {}); }}, "calls of blocks.1 have hooks"},
      {{.prepare = [](nn::GPT& m) { m.tokens_table.weight.on_grad([](const Tensor& g) { return g * 0.5; }); }},
       "the gradient of tokens.weight has hooks"},
      {{.loss = on_loss([](const Variable& loss) { loss.item(); })}, "a step cannot be recorded: "},
      {{.loss = on_loss([](const Variable&) { next_random_key(); })}, "drawn on cpu:0 would be the same"},
      {{.loss = on_loss([](const Variable&) { ones({2}, {.device = cpu}); })}, "on the CPU would be done now"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.reason);
    const Result r = both(row.plan);
    CHECK_MESSAGE(contains(r.graphs, row.reason), r.graphs);
    CHECK(r.graphs.starts_with("none: "));
    REQUIRE(r.said.size() == 1);
    CHECK(contains(r.said[0], row.reason));
  }
}

namespace {

/// Buffers that are written in forward, and a parameter that is frozen on the way.
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
      if (step == 4) net->norm.train(false);  // recorded anew
      if (step == 8) net->norm.train();
      losses.push_back(e.train_batch([](int64_t) {
        return pipeline::Sample{{randn({4, 5}, {.dtype = f32, .device = cuda0})},
                                {randint(0, 3, {4}, {.dtype = i64, .device = cuda0})}};
      }));
      if (step % 5 == 4)
        losses.push_back(e.eval_batch([](int64_t) {
          return pipeline::Sample{{ones({4, 5}, {.dtype = f32, .device = cuda0})},
                                  {zeros({4}, {.dtype = i64, .device = cuda0})}};
        }));
    }
    nn::State state;
    for (const auto& [name, tensor] : net->state()) state.emplace_back(name, tensor.to(cpu));
    return std::tuple{losses, state, e.graphs()};
  };
  const auto [losses, state, graphs] = run(true);
  const auto [eager_losses, eager_state, off] = run(false);
  CHECK(losses == eager_losses);
  for (size_t i = 0; i < state.size(); ++i) {
    CAPTURE(state[i].first);
    CHECK(equal(state[i].second, eager_state[i].second));
  }
  CHECK_MESSAGE(contains(graphs, "1 shape recorded, 9 of 12"), graphs);
}
