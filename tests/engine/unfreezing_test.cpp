// Gradual unfreezing under every wrapper: parameters that require grad when the model is wrapped may be frozen and
// trained again later. Training one that was frozen then is an error on all ranks, with its name, before the step.
#include "engine/params.h"
#include "nn/layer_list.h"
#include "parallel/gradient_sum.h"
#include "parallel/naive_ddp.h"
#include "pipeline/layers.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;

namespace {

/// Three layers; the last one is trained in every phase.
struct ThreeLayers : nn::Layer<ThreeLayers> {
  nn::Linear a{{.in = 4, .out = 6}}, b{{.in = 6, .out = 6}}, c{{.in = 6, .out = 2}};
  Variable forward(const Variable& x) { return c(tanh(b(tanh(a(x))))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
  nn::LayerList layers() override {
    nn::LayerList list;
    list.add("A", {a}, [this](const Variable& x) { return tanh(a(x)); });
    list.add("B", {b}, [this](const Variable& x) { return tanh(b(x)); });
    return list.add(c);
  }
};

constexpr int64_t rows_of_rank = 4;
Tensor data_of(int step, int part, int64_t width) {
  manual_seed(31);
  set_random_step(uint64_t(step), uint64_t(part));
  return randn({rows_of_rank, width + 4}).narrow(1, width == 4 ? 0 : 4, width).contiguous();
}
Variable loss_of_part(const Variable& y, int step, int part) { return mse_loss(y, data_of(step, part, 2)); }

/// A wrapped model on a rank: a training step, and the parameters that this rank holds.
struct Wrapped {
  std::function<void(int step)> step;
  std::function<Tensors()> read;
};
using Shared = std::shared_ptr<ThreeLayers>;
/// Wraps a model on a rank.
using Wrap = std::function<Wrapped(const Shared& net, int rank)>;
struct Wrapper {
  const char* name;
  int ranks;
  Wrap wrap;
};

std::shared_ptr<optim::Optimizer> adamw_of(nn::Module& m) { return make_adamw(m); }
Config unfreezing_config(int stage, int64_t accumulation, const char* optimizer) {
  Config config = config_of(stage, accumulation);
  config.train_micro_batch_size_per_gpu = rows_of_rank;
  config.optimizer = {optimizer, data::parse_json(R"({"lr": 0.01, "weight_decay": 0.1})", "test")};
  return config;
}
Call call_of(const Shared& net) {
  return [net](const Variable& x) { return (*net)(x); };
}
Variable loss_of_values(const pipeline::Values& out, const std::vector<Tensor>& targets) {
  return mse_loss(out[0], targets[0]);
}
pipeline::Sample sample_of_part(int step, int64_t part) {
  return {{data_of(step, int(part), 4)}, {data_of(step, int(part), 2)}};
}

/// A loop of one's own: backward() by the caller, then the optimizer's step.
Wrapped by_loop(const Shared& net, const std::function<void(int step)>& backward) {
  auto adamw = adamw_of(*net);
  return {[=](int step) {
            backward(step);
            adamw->step();
            adamw->zero_grad();
          },
          [=] { return copy_parameters(*net); }};
}
/// Such a loop over this rank's part of the data. averages: runs between backward and the optimizer's step.
Wrapped by_part(
    const Shared& net, int rank, const Call& forward, const std::function<void()>& averages = [] {}) {
  return by_loop(net, [=](int step) {
    loss_of_part(forward(data_of(step, rank, 4)), step, rank).backward();
    averages();
  });
}
/// Such a loop over the data of both ranks, without a wrapper, or with one that keeps no list of trained parameters.
Wrapped by_hand(const Shared& net, const Call& forward) {
  return by_loop(net, [=](int step) {
    const Tensor x = cat({data_of(step, 0, 4), data_of(step, 1, 4)}),
                 y = cat({data_of(step, 0, 2), data_of(step, 1, 2)});
    mse_loss(forward(x), y).backward();
  });
}

Wrap by_ddp(const parallel::DdpOptions& options) {
  return [=](const Shared& net, int rank) {
    auto ddp = std::make_shared<parallel::DistributedDataParallel>(*net, options);
    return by_part(net, rank, [ddp](const Variable& x) { return (*ddp)(x); });
  };
}

Wrap by_zero(int stage) {
  return [=](const Shared& net, int rank) -> Wrapped {
    auto adamw = adamw_of(*net);
    auto zero =
        std::make_shared<zero::Zero>(*net, *adamw, zero::ZeroOptions{.stage = stage, .param_persistence_threshold = 7});
    return {[=](int step) {
              loss_of_part((*net)(data_of(step, rank, 4)), step, rank).backward();
              const auto kept = adamw;  // keeps the optimizer alive, because ZeRO only refers to it
              zero->step();
            },
            [=] { return gathered_parameters(*zero, *net); }};
  };
}

Wrap by_engine(int stage, const char* optimizer) {
  return [=](const Shared& net, int rank) -> Wrapped {
    auto e = std::make_shared<engine::Engine<ThreeLayers>>(
        *net, engine::InitializeArgs{.config = unfreezing_config(stage, 1, optimizer), .log = quiet});
    return {[=](int step) {
              e->backward(loss_of_part((*e)(Variable(data_of(step, rank, 4))), step, rank));
              e->step();
            },
            [=] { return e->exchange() ? copy_parameters(*net) : full_parameters(*e, *net); }};
  };
}

Wrapped by_pipeline(const Shared& net, int) {
  auto stages = std::make_shared<pipeline::PipelineEngine>(
      pipeline::layers_of(net).layers, pipeline::EngineOptions{.micro_batches = 2, .bounds = {0, 2, 3}},
      loss_of_values);
  auto adamw = adamw_of(stages->module());
  return {[=](int step) {
            stages->train_batch([&](int64_t m) { return sample_of_part(step, m); });
            adamw->step();
            adamw->zero_grad();
          },
          [=] { return copy_parameters(stages->module()); }};
}

Wrapped by_engine_in_stages(const Shared& net, int) {
  Config config = unfreezing_config(1, 2, "AdamW");
  config.pipeline.stages = 2;
  engine::PipelineModule module{.model = net, .loss_fn = loss_of_values, .bounds = {0, 2, 3}};
  auto e = std::make_shared<engine::EngineBase>(module, engine::InitializeArgs{.config = config, .log = quiet});
  return {[=](int step) { e->train_batch([&](int64_t m) { return sample_of_part(step, m % 2); }); },
          [=] { return copy_parameters(e->module()); }};
}

Wrapped by_accumulator(const Shared& net, int rank) {
  auto sum = std::make_shared<parallel::GradientSum>(net->parameters(), &dist::world());
  return by_part(net, rank, call_of(net), [sum] {
    sum->add();
    sum->finish();
  });
}

/// Those whose optimizers are built.
const std::vector<Wrapper> wrappers = [] {
  std::vector<Wrapper> all = {
      {"DDP", 2, by_ddp({})},
      {"DDP, buckets of one", 2, by_ddp({.bucket_mib = 1e-5})},
      {"DDP, unused ones", 2, by_ddp({.find_unused_parameters = true})},
      {"ZeRO 0", 2, by_zero(0)},
      {"ZeRO 1", 2, by_zero(1)},
      {"ZeRO 2", 2, by_zero(2)},
      {"ZeRO 3", 2, by_zero(3)},
      {"engine, stage 0", 2, by_engine(0, "AdamW")},
      {"engine, stage 3", 2, by_engine(3, "AdamW")},
      {"engine, 2 stages", 2, by_engine_in_stages},
      {"pipeline", 2, by_pipeline},
      {"accumulator", 2, by_accumulator},
  };
  if (engine::type_named("OneBitAdam")) all.push_back({"engine, 1 bit", 2, by_engine(0, "OneBitAdam")});
  return all;
}();
/// It has no list of trained parameters: any parameter may be trained later.
const Wrapper free_one{"average_gradients", 2, [](const Shared& net, int rank) {
                         return by_part(net, rank, call_of(net),
                                        [net] { parallel::average_gradients(*net, dist::world()); });
                       }};
const Wrapper by_one_process{"alone", 1, [](const Shared& net, int) { return by_hand(net, call_of(net)); }};

Shared make_three() {
  manual_seed(2);
  return std::make_shared<ThreeLayers>();
}

/// The layers that are trained in each phase, besides c.
const std::vector<std::vector<std::string>> phases = {{"b"}, {"a", "b"}, {}, {"a"}};

void set_phase(ThreeLayers& net, const std::vector<std::string>& trained, bool biases_too = true) {
  for (auto& p : net.named_parameters()) {
    const std::string layer = p.name.substr(0, 1);
    const bool wanted = layer == "c" || std::count(trained.begin(), trained.end(), layer) > 0;
    p.variable.requires_grad_(wanted || (!biases_too && p.name.ends_with("bias")));
  }
}

/// The parameters after each phase, keyed by "phase name".
Tensors train_in_phases(const Wrapper& wrapper, int rank, bool full_stages) {
  const Shared net = make_three();
  const Wrapped w = wrapper.wrap(net, rank);
  Tensors all;
  int step = 0;
  for (size_t phase = 0; phase < phases.size(); ++phase) {
    set_phase(*net, phases[phase], full_stages);
    for (int i = 0; i < 2; ++i) w.step(step++);
    for (auto& [name, tensor] : w.read()) all[str(phase, " ", name)] = tensor;
  }
  return all;
}

/// The error of each rank; afterwards the whole job has failed.
std::vector<std::string> said_on_ranks(int ranks, const std::function<std::string(int rank)>& fn) {
  std::vector<std::string> all(static_cast<size_t>(ranks));
  (void)message([&] { on_ranks(ranks, [&](int rank) { all[size_t(rank)] = fn(rank); }); });
  return all;
}

}  // namespace

TEST_CASE("unfreezing: under every wrapper, parameters frozen and trained again match one process") {
  for (const bool full : {true, false}) {  // every stage must train something: false leaves the biases trained
    const Tensors one = train_in_phases(by_one_process, 0, full);
    std::vector<Wrapper> all = wrappers;
    all.push_back(free_one);
    for (const Wrapper& wrapper : all) {
      CAPTURE(wrapper.name);
      CAPTURE(full);
      const std::string name = wrapper.name;
      if (full && name == "engine, 2 stages") continue;
      const Tensors found =
          merged(on_ranks<Tensors>(wrapper.ranks, [&](int rank) { return train_in_phases(wrapper, rank, full); }));
      CHECK(found.size() == one.size());
      for (const auto& [key, tensor] : found) {
        CAPTURE(key);
        if (name != "engine, 1 bit") CHECK(allclose(tensor, one.at(key), 1e-4, 1e-5));
        if (full && key.starts_with("2 a"))  // frozen in phase 2: neither weight decay nor momentum changes it
          CHECK(equal(tensor, found.at("1" + key.substr(1))));
      }
    }
  }
}

TEST_CASE("unfreezing: what was frozen when it was wrapped is refused by name, on all ranks, before the step") {
  for (const Wrapper& wrapper : wrappers) {
    // all other parameters are frozen in that step, so no gradient is waited for
    for (const bool others_frozen : {false, true}) {
      CAPTURE(wrapper.name);
      CAPTURE(others_frozen);
      const std::string name = wrapper.name;
      // without any gradient they raise another error
      if (others_frozen && (name == "engine, 2 stages" || name == "engine, 1 bit")) continue;
      const auto found = said_on_ranks(wrapper.ranks, [&](int rank) {
        const Shared net = make_three();
        net->a.weight.requires_grad_(false);
        Wrapped w;
        Tensors before;
        const std::string said = message([&] {  // the other rank may fail before this one gets there
          w = wrapper.wrap(net, rank);
          if (!others_frozen) w.step(0), before = w.read();
          if (others_frozen) set_phase(*net, {}), net->c.requires_grad_(false);
          net->a.weight.requires_grad_(true);
          w.step(1);
        });
        for (auto& p : net->named_parameters())
          if (before.count(p.name) && !p.variable.tensor().storage()->is_empty())
            CHECK_MESSAGE(equal(p.variable.tensor(), before.at(p.name)), p.name);
        return said;
      });
      const std::string expected = str(name == "accumulator" ? "a parameter of shape (6, 4)" : "a.weight",
                                       " requires grad, but it was frozen when the model was wrapped");
      for (const std::string& said : found) CHECK_MESSAGE(contains(said, expected), said);
    }
  }
}

TEST_CASE("unfreezing: wrapped anew, the same optimizer goes on") {
  const Tensors found = alike(2, [&](int rank) {
    const Shared net = make_three();
    const auto adamw = adamw_of(*net);
    for (size_t phase = 0; phase < phases.size(); ++phase) {
      set_phase(*net, phases[phase]);
      parallel::DistributedDataParallel ddp(*net);
      for (int i = 0; i < 2; ++i) {
        const int step = int(phase) * 2 + i;
        loss_of_part(ddp(data_of(step, rank, 4)), step, rank).backward();
        adamw->step();
        adamw->zero_grad();
      }
    }
    return copy_parameters(*net);
  });
  const Tensors one = train_in_phases(by_one_process, 0, true);
  for (const auto& [name, tensor] : found) CHECK_MESSAGE(allclose(tensor, one.at("3 " + name), 1e-4, 1e-5), name);
}

TEST_CASE("unfreezing: ranks that freeze other parameters all fail, and are told which") {
  for (const Wrapper& wrapper : wrappers) {
    const std::string name = wrapper.name;
    // a single replica, or no names
    if (name.starts_with("engine, 2") || name == "pipeline" || name == "accumulator") continue;
    CAPTURE(wrapper.name);
    const auto found = said_on_ranks(2, [&](int rank) {
      const Shared net = make_three();
      const Wrapped w = wrapper.wrap(net, rank);
      w.step(0);
      if (rank == 1) net->b.weight.requires_grad_(false);
      return message([&] { w.step(1); });
    });
    for (const std::string& said : found) CHECK_MESSAGE(contains(said, "frozen: b.weight"), said);
  }
}
