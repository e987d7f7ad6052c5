// The pipeline engine: any schedule, split and number of stages gives the bits of one process that accumulates the same
// micro-batches.
#include <doctest/doctest.h>

#include "optim/optimizer.h"
#include "parallel/gradient_sum.h"
#include "tests/pipeline/language.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

/// Trains in one process without a pipeline; returns the parameters, with the losses as "loss".
Tensors reference(int micro_batches, double clip = 0) {
  manual_seed(5);
  StageModule net(model(), {{0, 8}}, 0);
  Optimizer optimizer(net);
  parallel::GradientSum sum(net.parameters());
  std::vector<double> losses, norms;
  for (int step = 0; step < steps; ++step) {
    double total = 0;
    for (int m = 0; m < micro_batches; ++m) {
      set_random_step(uint64_t(step), uint64_t(m));
      const Sample s = *sample_of(step, m);
      const Variable loss = loss_of_tokens(net.forward(0, {s.inputs.begin(), s.inputs.end()}), s.targets);
      loss.backward();
      sum.add();
      total += loss.item();
    }
    sum.finish();
    for (const Variable& p : net.parameters()) div_scalar_(p.grad(), micro_batches);
    if (clip > 0) {  // the order of layers: the tied table is the first layer
      std::vector<Variable> in_order{net.tied_parameters("table")[0].variable};
      for (auto& p : net.own_parameters(0)) in_order.push_back(p.variable);
      norms.push_back(optim::clip_grad_norm(in_order, clip));
    }
    optimizer.step();
    losses.push_back(total / micro_batches);
  }
  Tensors all = copy_parameters(net);
  all["loss"] = Tensor::from(losses, {steps});
  if (clip > 0) all["norms"] = Tensor::from(norms, {steps});
  return all;
}

/// How an engine trains.
struct Plan {
  int ranks;
  EngineOptions options;
  std::vector<LayerSpec> layers = model();
  double clip = 0;
  const char* transport = "auto";
};

/// Trains `steps` steps; returns all parameters and buffers by name, and checks that those on several ranks are equal.
Tensors train(const Plan& plan) {
  const auto on_rank = [&](int) {
    manual_seed(5);
    PipelineEngine engine(plan.layers, plan.options, loss_of_tokens);
    Optimizer optimizer(engine.module());
    std::vector<double> losses, norms;
    for (int step = 0; step < steps; ++step) {
      losses.push_back(engine.train_batch([&](int64_t m) { return sample_of(step, m); }));
      if (plan.clip > 0) norms.push_back(engine.clip_grad_norm(plan.clip));
      optimizer.step();
    }
    Tensors mine = copy_parameters(engine.module());
    for (auto& b : engine.module().named_buffers()) mine[b.name] = b.tensor.clone();
    if (plan.clip > 0) mine["norms"] = Tensor::from(norms, {steps});
    mine["loss"] = Tensor::from(losses, {steps});
    return mine;
  };
  return merged(on_ranks<Tensors>(plan.ranks, on_rank, {.transport = plan.transport, .timeout = dist::Seconds(60)}));
}

}  // namespace

TEST_CASE("pipeline: random numbers that the data draw are the same at both ends, and dropout goes on behind them") {
  const auto losses = [](int ranks) {
    return on_ranks<std::vector<double>>(ranks, [](int) {
      manual_seed(5);
      const auto drop = [](const Variable& x) { return dropout(x, 0.5, true); };
      PipelineEngine engine(
          {layer("drop", drop), layer<nn::Linear>({.in = 4, .out = 4}), layer("drop again", drop)},
          {.micro_batches = 2, .split = SplitBy::parse("uniform")},
          [](const Values& out, const std::vector<Tensor>& targets) { return mse_loss(out[0], targets[0]); });
      std::vector<double> found;
      for (int step = 0; step < 2; ++step) {
        found.push_back(engine.train_batch([&](int64_t) {
          const Tensor x = randn({3, 4});
          manual_seed(6);  // the user's draws must not affect the engine
          return Sample{{x}, {x}};
        }));
        engine.module().zero_grad();
      }
      return found;
    })[0];
  };
  const auto one = losses(1);
  CHECK(losses(2) == one);
  CHECK(losses(3) == one);
}

TEST_CASE(
    "pipeline: bit-identical to one process, for every schedule, number of stages and copies, with dropout, tied "
    "layers and tensors of several dtypes") {
  const Tensors one = reference(8);
  CHECK(one.size() == 10);
  std::vector<Plan> plans{
      {1, {.micro_batches = 8}},
      {2, {.micro_batches = 8}},
      {4, {.micro_batches = 8}},
      {8, {.micro_batches = 8, .split = SplitBy::parse("uniform")}},
      {3, {.micro_batches = 8, .schedule = ScheduleKind::gpipe, .split = SplitBy::parse("type:Linear")}},
      {4, {.stages = 2, .micro_batches = 4}},
      {4, {.stages = 1, .micro_batches = 2}},
      {8, {.stages = 2, .micro_batches = 2, .schedule = ScheduleKind::gpipe}},
      {8, {.stages = 4, .micro_batches = 4, .dynamic_shapes = true}},
      {2, {.micro_batches = 8, .bounds = {0, 7, 8}}},
      {2, {.micro_batches = 8, .schedule = ScheduleKind::interleaved, .split = SplitBy::parse("uniform")}},
      {4,
       {.stages = 2,
        .micro_batches = 4,
        .schedule = ScheduleKind::interleaved,
        .chunks = 4,
        .split = SplitBy::parse("uniform")}},
      {1, {.micro_batches = 8, .schedule = ScheduleKind::zb_h1}},
      {2, {.micro_batches = 8, .schedule = ScheduleKind::zb_h1}},
      {1, {.micro_batches = 8, .schedule = ScheduleKind::dualpipe_v}},
      {2, {.micro_batches = 8, .schedule = ScheduleKind::dualpipe_v, .split = SplitBy::parse("uniform")}},
      {4, {.micro_batches = 8, .schedule = ScheduleKind::dualpipe_v, .split = SplitBy::parse("uniform")}},
  };
  for (const int interval : {1, 2, 3, 100})  // layers whose forward runs again in backward
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
      plans.push_back({2, {.micro_batches = 8, .schedule = kind, .checkpoint_interval = interval}});
  for (const Plan& plan : plans) {
    CAPTURE(plan.ranks);
    CAPTURE(plan.options.stages);
    CAPTURE(name_of(plan.options.schedule));
    CAPTURE(plan.options.chunks);
    CAPTURE(plan.options.checkpoint_interval);
    CHECK(differing(one, train(plan)) == "");
  }
}

TEST_CASE("pipeline: over tcp, and with clipping by the norm over all stages") {
  CHECK(differing(reference(4), train({.ranks = 2, .options = {.micro_batches = 4}, .transport = "tcp"})) == "");
  const Tensors one = reference(4, 0.05);
  CHECK(one.count("norms") == 1);
  for (Plan plan : std::vector<Plan>{
           {1, {.micro_batches = 4}},
           {4, {.micro_batches = 4}},
           {4, {.stages = 2, .micro_batches = 2}},
           {2, {.micro_batches = 4, .schedule = ScheduleKind::dualpipe_v, .split = SplitBy::parse("uniform")}}}) {
    plan.clip = 0.05;
    CHECK(differing(one, train(plan)) == "");
  }
}

TEST_CASE("pipeline: any number of micro-batches, also fewer than stages") {
  for (const int m : {1, 2, 3, 7}) {
    const Tensors one = reference(m);
    for (const int ranks : {1, 3, 5}) CHECK(differing(one, train({ranks, {.micro_batches = m}})) == "");
    CHECK(differing(one, train({4, {.micro_batches = m, .schedule = ScheduleKind::zb_h1}})) == "");
  }
}

/// A Linear whose input is centred by a running mean.
struct Centred : nn::Layer<Centred> {
  Tensor running = zeros({width});
  nn::Linear linear{{.in = width, .out = width}};
  Variable forward(const Variable& x) {
    if (is_training()) running.copy_(lerp(running, mean(x.tensor(), {0}), 0.5));
    return linear(x - Variable(running));
  }
  void fields(nn::Fields& f) override { f("running", running)("linear", linear); }
};

TEST_CASE("pipeline: layers with state count a forward that runs again once") {
  // Two kinds of state in both stages; one schedule has several micro-batches in flight, the other has a split
  // backward.
  std::vector<LayerSpec> layers{layer<nn::Embedding>({.num = vocab, .dim = width})};
  for (int i = 0; i < 2; ++i) {
    layers.push_back(layer<nn::BatchNorm1d>({.channels = width}));
    LayerSpec centred;
    centred.kind = "centred";
    centred.make = [] { return std::make_unique<Centred>(); };
    layers.push_back(centred);
  }
  layers.push_back(layer<nn::Linear>({.in = width, .out = vocab}));
  const auto run = [&](const EngineOptions& options) { return train({2, options, layers}); };
  const Tensors plain = run({.micro_batches = 4});
  CHECK(plain.at("1.num_batches_tracked").item() == 4 * steps);
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::zb_h1}) {
    for (const int interval : {1, 2, 100}) {
      CAPTURE(name_of(kind));
      CAPTURE(interval);
      CHECK(differing(plain, run({.micro_batches = 4, .schedule = kind, .checkpoint_interval = interval})) == "");
    }
  }
}

TEST_CASE("pipeline: evaluation of any number of micro-batches of any size, on every rank, leaves training as it is") {
  manual_seed(5);
  StageModule full(model(), {{0, 8}}, 0);
  full.eval();
  const Tensors one = reference(4);
  for (const Plan& plan :
       {Plan{1, {.micro_batches = 4}}, Plan{3, {.micro_batches = 4}}, Plan{4, {.stages = 2, .micro_batches = 2}},
        Plan{2, {.micro_batches = 4, .schedule = ScheduleKind::interleaved, .split = SplitBy::parse("uniform")}},
        Plan{2, {.micro_batches = 4, .schedule = ScheduleKind::dualpipe_v, .split = SplitBy::parse("uniform")}}}) {
    const int replicas = plan.options.stages > 0 ? plan.ranks / plan.options.stages : 1;
    const auto all = on_ranks<Tensors>(plan.ranks, [&](int) {
      manual_seed(5);
      PipelineEngine engine(plan.layers, plan.options, loss_of_tokens);
      Optimizer optimizer(engine.module());
      Tensors mine;
      for (int step = 0; step < steps; ++step) {
        for (const int each : {1, 5}) {
          const auto losses = engine.eval_batch([&](int64_t m) { return sample_of(50, m, 1 + m % 3); }, each);
          if (step == 0) mine[str("eval ", each)] = Tensor::from(losses, {int64_t(losses.size())});
        }
        engine.train_batch([&](int64_t m) { return sample_of(step, m); });
        optimizer.step();
      }
      for (auto& [name, tensor] : copy_parameters(engine.module())) mine[name] = tensor;
      return mine;
    });
    for (const Tensors& mine : all) {
      for (const int each : {1, 5}) {
        const auto losses = mine.at(str("eval ", each)).to_vector<double>();
        REQUIRE(losses.size() == size_t(each * replicas));
        for (size_t m = 0; m < losses.size(); ++m) {
          const NoGrad no_grad;
          const Sample s = *sample_of(50, int64_t(m), 1 + int64_t(m) % 3);
          CHECK(losses[m] == loss_of_tokens(full.forward(0, {s.inputs.begin(), s.inputs.end()}), s.targets).item());
        }
      }
      for (const auto& [name, tensor] : mine)
        if (!name.starts_with("eval")) CHECK_MESSAGE(equal(tensor, one.at(name)), name);
    }
  }
}

TEST_CASE("pipeline: stages exchange activations and their gradients, and shapes once") {
  const nn::Linear::Options linear{.in = 32, .out = 32};
  const auto sent = on_ranks<std::vector<int64_t>>(3, [&](int) {
    PipelineEngine engine({layer<nn::Linear>(linear), layer<nn::Linear>(linear), layer<nn::Linear>(linear)},
                          {.micro_batches = 4},
                          [](const Values& out, const std::vector<Tensor>&) { return mean(out[0]); });
    std::vector<int64_t> bytes;
    for (int step = 0; step < 3; ++step) {
      engine.train_batch([](int64_t) { return Sample{{ones({16, 32})}, {}}; });
      for (Variable& p : engine.module().parameters()) p.clear_grad();
      bytes.push_back(engine.bytes_sent());
    }
    return bytes;
  });
  const int64_t one = 4 * 16 * 32 * 4;  // micro-batches x bytes of an activation
  for (int rank = 0; rank < 3; ++rank) {
    const auto& bytes = sent[size_t(rank)];
    const int64_t step = one * (rank == 1 ? 2 : 1);
    CHECK(bytes[2] - bytes[1] == step);
    CHECK(bytes[1] - bytes[0] == step);
    CHECK(bytes[0] >= step);
    CHECK(bytes[0] - step <= 2000);
    CHECK((bytes[0] > step) == (rank < 2));  // the first step also sends the shapes of activations
  }
}

TEST_CASE(
    "pipeline: a model lies where it is built, tied layers everywhere with one start, and names are those of the whole "
    "model") {
  const auto names = on_ranks<std::string>(4, [](int) {
    manual_seed(5);
    PipelineEngine engine(model(), {.micro_batches = 1, .split = SplitBy::parse("uniform")}, loss_of_tokens);
    std::string all;
    for (auto& p : engine.module().named_parameters()) all += p.name + " ";
    CHECK(engine.bounds() == std::vector<int>{0, 2, 4, 6, 8});
    CHECK(engine.is_first() == (engine.stage() == 0));
    CHECK(engine.is_last() == (engine.stage() == 3));
    return all;
  });
  CHECK(names == std::vector<std::string>{"tied.table.weight 1.weight 1.bias ", "3.weight 3.bias ", "5.weight 5.bias ",
                                          "tied.table.weight 6.weight 6.bias "});
  CHECK(parameters_of(model()) == std::vector<double>{88, 72, 0, 72, 0, 16, 72, 0});
}
