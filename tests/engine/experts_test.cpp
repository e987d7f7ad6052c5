// Engines for a GPT with experts, under expert parallelism, pipeline stages and tensor parallelism: the losses of one
// process, and checkpoints for any number of ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "data/safetensors.h"
#include "engine/engine.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "pipeline/layers.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;

namespace spread_experts {

using engine::Engine, engine::EngineBase;
using pipeline::Sample;

namespace {

constexpr int micros = 4;
constexpr nn::GPT::Options sizes{.vocab = 11, .context = 6, .layers = 4, .width = 8, .heads = 2, .dropout = 0.1};
const moe::Options exact{.experts = 4,
                         .top_k = 2,
                         .drop_tokens = false,
                         .second_expert_sampling = false,
                         .balance_coef = 0.05,
                         .z_coef = 0.01};
const moe::Options drawn{.experts = 4, .top_k = 2, .noise = moe::Noise::rsample, .balance_coef = 0.05};

std::shared_ptr<nn::GPT> make_gpt(const moe::Options& experts, dist::ProcessGroup* group = nullptr,
                                  double dropout = 0) {
  manual_seed(3);
  nn::GPT::Options o = sizes;
  o.dropout = dropout;
  auto model = std::make_shared<nn::GPT>(o);
  moe::add_experts(*model, experts, 2,
                   group ? std::shared_ptr<dist::ProcessGroup>(std::shared_ptr<void>(), group) : nullptr);
  return model;
}

Sample sample_of(int64_t step, int64_t micro) {  // independent of the random generator
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 24; ++i) tokens.push_back((i * i * 3 + step * 5 + micro * 7 + i / 5) % 11);
  const Tensor all = Tensor::from(tokens, {2, 12});
  return {{all.narrow(1, 0, 6).contiguous()}, {all.narrow(1, 1, 6).contiguous()}};
}

Config config_for(int stage, int64_t accumulation, DType dtype = f32) {
  Config c = config_of(stage, accumulation, dtype);
  c.gradient_clipping = 0.5;
  return c;
}

struct Result {
  std::vector<double> losses, norms;
  Tensors parameters;
  int64_t skipped = 0;
};

optim::AdamWOptions adam{.lr = 1e-2, .weight_decay = 0.1};

/// Training written by hand, without an engine.
Result alone(const moe::Options& experts, int64_t steps, double dropout = 0) {
  Result r;
  const auto model = make_gpt(experts, nullptr, dropout);
  optim::AdamW optimizer(model->parameters(), adam);
  parallel::GradientSum sum(model->parameters());
  manual_seed(1234);
  for (int64_t step = 0; step < steps; ++step) {
    double total = 0;
    for (int64_t micro = 0; micro < micros; ++micro) {
      const Sample s = sample_of(step, micro);
      set_random_step(uint64_t(step), uint64_t(micro));
      const Variable of_tokens = model->loss(s.inputs[0], s.targets[0]), loss = add(of_tokens, nn::own_loss(*model));
      total += loss.item();
      loss.backward();
      sum.add();
    }
    sum.finish();
    for (const Variable& p : model->parameters()) mul_scalar_(p.grad(), 1. / micros);
    r.norms.push_back(optim::clip_grad_norm(model->parameters(), 0.5));
    r.losses.push_back(total / micros);
    optimizer.step();
    optimizer.zero_grad();
  }
  r.parameters = copy_parameters(*model);
  return r;
}

void close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  CHECK(a.size() == b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(tolerance));
}

struct Run {
  int ranks = 2, parallel = 2, stage = 1;
  int64_t steps = 4;
  std::string load = {}, save = {};
  DType dtype = f32;
  double power = 8;  // the initial loss scale is 2 to this power
  bool recompute = false;
};

/// Trains with engine::Engine; `parallel` ranks share the experts.
Result train_shared(const Run& run) {
  std::mutex mutex;
  Result whole;
  const auto all = on_ranks<Result>(run.ranks, [&](int) {
    const parallel::Mesh mesh({.dp = run.ranks, .ep = run.parallel}, dist::world());
    const auto model = make_gpt(exact, &mesh.ep());
    Config c = config_for(run.stage, micros / run.ranks, run.dtype);
    c.fp16.initial_scale_power = int(run.power);
    c.activation_checkpointing.enabled = run.recompute;
    optim::AdamW optimizer(model->parameters(), adam);
    Engine<nn::GPT> e(*model, {.optimizer = &optimizer, .config = c, .mesh = &mesh, .log = quiet});
    if (!run.load.empty()) CHECK(e.load_checkpoint(run.load));
    Result r;
    while (e.global_steps() < run.steps) {
      const int64_t step = e.global_steps();
      for (int64_t i = 0; i < micros / run.ranks; ++i) {
        const Sample s = sample_of(step, e.micro_batch());
        const Variable loss = e(s.inputs[0], s.targets[0]);
        e.backward(add(loss, nn::own_loss(*model).to(loss.dtype())));
        e.step();
      }
      r.losses.push_back(e.train_loss());
      r.norms.push_back(e.get_global_grad_norm());
    }
    r.skipped = e.skipped_steps();
    if (!run.save.empty()) {
      e.save_checkpoint(run.save);
      e.wait_for_checkpoint();
      if (run.stage < 3) CHECK(e.save_16bit_model(run.save + "/whole", "model.safetensors"));
    }
    r.parameters = whole_parameters(e, *model);
    const std::scoped_lock lock(mutex);
    for (const auto& [name, tensor] : r.parameters) {
      const auto [at, is_new] = whole.parameters.emplace(name, tensor);
      CHECK_MESSAGE(equal(at->second, tensor), name);
    }
    return r;
  });
  for (const Result& r : all) CHECK((r.losses == all[0].losses && r.skipped == all[0].skipped));
  for (const Result& r : all)
    if (run.dtype == f32) CHECK(r.norms == all[0].norms);
  whole.losses = all[0].losses;
  whole.norms = all[0].norms;
  whole.skipped = all[0].skipped;
  return whole;
}

struct Stages {
  std::string plan;
  bool recompute = false;
  int interval = 0;
  moe::Options experts = exact;
  double dropout = 0;
  DType dtype = f32;
  int64_t steps = 4;
  std::string load = {}, save = {};
};

/// Trains the model's layers with EngineBase, under any plan.
Result train_parts(const Stages& run) {
  const parallel::Plan plan = parallel::parse_plan(run.plan);
  const auto all = on_ranks<Result>(plan.ranks(), [&](int rank) {
    const parallel::Mesh mesh(plan, dist::world());
    const auto model = make_gpt(run.experts, plan.ep > 1 ? &mesh.ep() : nullptr, run.dropout);
    engine::InitializeArgs args{
        .optimizer = [](nn::Module& m) { return std::make_unique<optim::AdamW>(m.parameters(), adam); },
        .config = config_for(std::max(plan.zero, 0), micros / plan.dp, run.dtype),
        .mesh = &mesh,
        .log = quiet};
    if (plan.tp > 1) args.sliced = tensor_parallel::apply(*model, mesh.tp());
    const auto [layers, loss] = pipeline::layers_of(model, run.recompute);
    engine::PipelineModule module{
        .layers = layers, .loss_fn = loss, .num_stages = plan.pp, .partition_method = "uniform"};
    if (run.interval > 0) module.activation_checkpoint_interval = run.interval;
    EngineBase e(std::move(module), std::move(args));
    if (!run.load.empty()) CHECK(e.load_checkpoint(run.load));
    Result r;
    while (e.global_steps() < run.steps) {
      r.losses.push_back(e.train_batch([&](int64_t micro) { return sample_of(e.global_steps(), micro); }));
      r.norms.push_back(e.get_global_grad_norm());
    }
    r.skipped = e.skipped_steps();
    if (!run.save.empty()) {
      e.save_checkpoint(run.save);
      e.wait_for_checkpoint();
    }
    const auto state = e.whole_state();
    if (rank == 0 && run.dtype == f32) CHECK(state.optimizer.tensors.size() == 2 * state.model.size());
    for (const auto& [name, tensor] : state.model) r.parameters[name] = tensor;
    return r;
  });
  for (const Result& r : all)
    CHECK((r.losses == all[0].losses && r.norms == all[0].norms && r.skipped == all[0].skipped));
  return all[0];
}

}  // namespace

TEST_CASE("engine: experts over ranks train as in one process, in every stage") {
  const Result expected = alone(exact, 4);
  for (const auto& [ranks, parallel] : {std::pair{2, 2}, {4, 2}, {4, 4}, {2, 1}}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(parallel);
      CAPTURE(stage);
      const Result r = train_shared({.ranks = ranks, .parallel = parallel, .stage = stage});
      close(r.losses, expected.losses, 2e-5);
      close(r.norms, expected.norms, 1e-4);
      CHECK(distance(r.parameters, expected.parameters) < 2e-4);
    }
  }
}

TEST_CASE("engine: blocks with experts that are run again: the same bits, with their loss") {
  for (const int stage : {1, 3}) {
    const Result kept = train_shared({.stage = stage}), again = train_shared({.stage = stage, .recompute = true});
    CHECK(kept.losses == again.losses);
    CHECK(differing(kept.parameters, again.parameters) == "");
  }
}

TEST_CASE("engine: fp16 with experts over ranks skips the same steps on all ranks") {
  const Result expected = train_shared({.ranks = 1, .parallel = 1, .steps = 8, .dtype = f16, .power = 24});
  for (const int stage : {0, 2, 3}) {
    const Result r = train_shared({.ranks = 4, .stage = stage, .steps = 8, .dtype = f16, .power = 24});
    CHECK(r.skipped > 0);
    CHECK(r.skipped < 8);
    CHECK(r.skipped == expected.skipped);
    close(r.losses, expected.losses, 1e-2);
  }
}

TEST_CASE("engine: experts are saved with all they have, and loaded by any number of ranks that share them") {
  const TempDir dir;
  const Result expected = train_shared({.steps = 6});
  const std::vector<double> rest(expected.losses.begin() + 3, expected.losses.end());
  train_shared({.stage = 2, .steps = 3, .save = (dir.path / "two").string()});
  for (const auto& [ranks, parallel, stage] : {std::tuple{1, 1, 1}, {2, 2, 3}, {4, 4, 0}, {4, 2, 1}}) {
    CAPTURE(ranks);
    CAPTURE(parallel);
    const Result r = train_shared(
        {.ranks = ranks, .parallel = parallel, .stage = stage, .steps = 6, .load = (dir.path / "two").string()});
    close(r.losses, rest, 2e-5);
    CHECK(distance(r.parameters, expected.parameters) < 2e-4);
  }
  train_shared({.ranks = 1, .parallel = 1, .steps = 3, .save = (dir.path / "one").string()});
  close(train_shared({.ranks = 4, .parallel = 2, .stage = 3, .steps = 6, .load = (dir.path / "one").string()}).losses,
        rest, 2e-5);
  close(train_parts({.plan = "dp2+pp2+ep2+zero1", .steps = 6, .load = (dir.path / "one").string()}).losses, rest, 2e-5);
  // Nothing is lost when the number of ranks changes, and the exported model contains every tensor.
  const Tensors before = train_shared({.stage = 3, .steps = 3, .load = (dir.path / "one").string()}).parameters;
  CHECK(differing(
            before,
            train_shared({.ranks = 4, .parallel = 4, .steps = 3, .load = (dir.path / "one").string()}).parameters) ==
        "");
  const auto file = data::SafeTensors::open((dir.path / "two/whole/model.safetensors").string());
  for (const auto& [name, tensor] : before)
    CHECK_MESSAGE((file.contains(name) && file.tensor(name).shape() == tensor.shape()), name);
}

TEST_CASE("engine: stages with experts have the bits of one process; what is shared and sliced is near") {
  for (const moe::Options* experts : {&exact, &drawn}) {
    const Result expected = alone(*experts, 4, 0.1);
    for (const auto& [plan, recompute] :
         {std::pair{"pp2", false}, {"pp2", true}, {"dp2+pp2+zero1", false}, {"dp1", true}}) {
      CAPTURE(std::string(plan));
      CAPTURE(recompute);
      const Result r = train_parts({.plan = plan, .recompute = recompute, .experts = *experts, .dropout = 0.1});
      CHECK(r.losses == expected.losses);
      CHECK(r.norms == expected.norms);
      CHECK(differing(r.parameters, expected.parameters) == "");
    }
  }
  const Result expected = alone(exact, 4);
  for (const char* plan :
       {"dp2+ep2", "dp2+ep2+zero1", "dp2+pp2+ep2+zero1", "dp4+ep2+zero1", "tp2", "dp2+tp2+ep2", "dp2+tp2+ep2+zero1"}) {
    for (const bool recompute : {false, true}) {
      CAPTURE(std::string(plan));
      CAPTURE(recompute);
      const Result r = train_parts({.plan = plan, .recompute = recompute, .interval = recompute ? 0 : 2});
      close(r.losses, expected.losses, 2e-5);
      close(r.norms, expected.norms, 1e-4);
      CHECK(distance(r.parameters, expected.parameters) < 2e-4);
    }
  }
  const Result sliced = train_parts({.plan = "tp2", .experts = drawn, .dropout = 0.1}),
               whole = alone(drawn, 4, 0.1);  // uses the same random numbers
  close(sliced.losses, whole.losses, 1e-3);
  close(train_parts({.plan = "dp2+pp2+ep2", .dtype = f16}).losses, expected.losses, 1e-2);
}

TEST_CASE("engine: experts over ranks: impossible settings are rejected") {
  const auto refusal = [](parallel::Plan plan, bool with_mesh, int share = 2) {
    return message([&] {
      dist::spawn(2, [&](int) {
        const parallel::Mesh mesh({.dp = 2, .ep = 2}, dist::world()), other(plan, dist::world());
        const auto model = make_gpt(exact, share > 1 ? &mesh.ep() : nullptr);
        Config c = config_for(0, 1);
        c.gradient_clipping = 0;
        c.optimizer.type = "AdamW";
        Engine<nn::GPT> e(*model, {.config = c, .mesh = with_mesh ? &other : nullptr, .log = quiet});
      });
    });
  };
  CHECK(contains(refusal({.dp = 2, .ep = 2}, false),
                 "the model's experts are shared by 2 ranks: expected .mesh of a plan with ep2, got none"));
  CHECK(contains(refusal({.dp = 2}, true), "expected .mesh of a plan with ep2, got dp2"));
  CHECK(contains(refusal({.pp = 2}, true), "expected .mesh of a plan with ep2, got pp2"));
}

}  // namespace spread_experts
