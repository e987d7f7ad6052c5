// Pipelines under the engine: the bits of one engine on one rank, with ZeRO 1, loss scaling, bf16, clipping and every
// schedule; checkpoints of any plan.
#include <doctest/doctest.h>

#include <cmath>

#include "data/safetensors.h"
#include "engine/part.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;
using engine::EngineBase, engine::PipelineModule, engine::InitializeArgs;
using pipeline::LayerSpec, pipeline::Values, pipeline::layer;

namespace {

/// Net of util.h as a list of layers with the same names, followed by a layer without parameters.
std::vector<LayerSpec> net_layers() {
  const auto with = [](auto fn) {
    return [fn](nn::Module* m, const Values& in) { return Values{fn(m->call(in.at(0)), m->is_training())}; };
  };
  std::vector<LayerSpec> layers;
  layers.push_back(layer<nn::Linear>({.in = 6, .out = 130}).named("a"));
  layers.push_back(layer<nn::LayerNorm>({.shape = {130}}).named("norm").with(with([](const Variable& x, bool training) {
    return dropout(gelu(x), 0.2, training);
  })));
  layers.push_back(layer<nn::Linear>({.in = 130, .out = 97}).named("b").with(with([](const Variable& x, bool training) {
    return dropout(relu(x), 0.2, training);
  })));
  layers.push_back(layer<nn::Linear>({.in = 97, .out = 3}).named("c"));
  // makes the last of three stages one without parameters
  layers.push_back(layer("identity", [](const Variable& x) { return x; }));
  return layers;
}

PipelineModule module_of(int stages) {
  PipelineModule m{
      .layers = net_layers(),
      .loss_fn = [](const Values& y, const std::vector<Tensor>& targets) { return cross_entropy(y[0], targets[0]); },
      .num_stages = stages};
  if (stages > 1) m.partition_method = "uniform";
  if (stages == 3) m.bounds = {0, 2, 4, 5};
  return m;
}

/// The whole model on one rank, with the same initial values.
struct StackedNet : Net {
  StackedNet() {
    pipeline::StageModule whole(net_layers(), {{0, 5}}, 0);
    nn::State state;
    for (auto& p : whole.named_parameters()) state.emplace_back(p.name, p.variable.tensor());
    load_state(state);
  }
};

struct Case {
  int ranks = 1, stages = 1;
  int64_t accumulation = 8;
  int stage = 0;
  DType dtype = f32;
  double clip = 0.5;
  std::string schedule = "1f1b";
  int64_t chunks = 0, recompute = 0;
};

Config case_config(const Case& c) {
  Config config = config_of(c.stage, c.accumulation, c.dtype);
  config.gradient_clipping = c.clip;
  config.fp16.initial_scale_power = 22;  // so large that the first steps overflow
  config.fp16.loss_scale_window = 2;
  config.pipeline.schedule = c.schedule;
  config.pipeline.chunks = c.chunks;
  config.pipeline.activation_checkpoint_interval = c.recompute;
  return config;
}

std::unique_ptr<optim::Schedule> make_warmup(optim::Optimizer& o) {
  return std::make_unique<optim::WarmupLR>(
      o, optim::WarmupLR::Options{.warmup_max_lr = 2e-2, .warmup_num_steps = 8, .warmup_type = optim::Warmup::linear});
}

EngineBase make_engine(const Case& c) {
  return engine::initialize(module_of(c.stages), {.optimizer = make_adamw,
                                                  .training_data = data::share(samples()),
                                                  .lr_scheduler = make_warmup,
                                                  .config = case_config(c),
                                                  .log = quiet});
}

/// Appends loss, norm, loss scale, learning rate and skipped steps to the report of a run.
void note(engine::EngineBase& e, std::vector<double>& report) {
  for (const double value : {e.train_loss(), std::isnan(e.get_global_grad_norm()) ? -1 : e.get_global_grad_norm(),
                             e.loss_scale(), e.get_lr()[0], double(e.skipped_steps())})
    report.push_back(value);
}

Tensors merge(const std::vector<Tensors>& all) {
  Tensors merged;
  for (const Tensors& mine : all) {
    for (const auto& [name, tensor] : mine) {
      if (name == "none") continue;
      if (merged.count(name)) CHECK_MESSAGE(equal(merged[name], tensor), name);
      merged[name] = tensor;
    }
  }
  return merged;
}

Tensors pipeline_run(const Case& c, int64_t steps, const std::string& load = "", const std::string& save = "") {
  return merge(on_ranks<Tensors>(c.ranks, [&](int) {
    EngineBase e = make_engine(c);
    if (!load.empty()) REQUIRE(e.load_checkpoint(load));
    std::vector<double> report;
    while (e.global_steps() < steps) {
      e.train_batch();
      note(e, report);
    }
    if (!save.empty()) e.save_checkpoint(save);
    Tensors mine = whole_parameters(e, e.pipeline().module());
    mine["report"] = Tensor::from(report, {int64_t(report.size())});
    return mine;
  }));
}

Tensors plain_run(const Case& c, int64_t steps, const std::string& load = "", const std::string& save = "") {
  return merge(on_ranks<Tensors>(c.ranks, [&](int) {
    manual_seed(1234);
    StackedNet net;
    const auto optimizer = make_adamw(net);
    const auto schedule = make_warmup(*optimizer);
    engine::Engine<Net> e(net, {.optimizer = optimizer.get(),
                                .training_data = data::share(samples()),
                                .lr_scheduler = schedule.get(),
                                .config = case_config(c),
                                .log = quiet});
    if (!load.empty()) REQUIRE(e.load_checkpoint(load));
    std::vector<double> report;
    data::RepeatingLoader<data::Example> batches(*e.training_dataloader());
    e.training_dataloader()->load_state(e.training_dataloader()->state());
    while (e.global_steps() < steps) {
      for (int64_t i = 0; i < c.accumulation; ++i) {
        const data::Example& one = batches.next();
        e.backward(cross_entropy(e(one.input), one.target));
        e.step();
      }
      note(e, report);
    }
    if (!save.empty()) e.save_checkpoint(save);
    Tensors mine = whole_parameters(e, net);
    mine["report"] = Tensor::from(report, {int64_t(report.size())});
    return mine;
  }));
}

}  // namespace

TEST_CASE(
    "pipeline engine: the bits of one engine, with ZeRO 1, loss scaling that overflows, bf16, clipping, any schedule") {
  for (const DType dtype : {f32, f16, bf16}) {
    const Tensors one = plain_run({.dtype = dtype}, 6);
    if (dtype == f16) CHECK(one.at("report").data<double>()[5 * 6 - 1] > 0);  // some steps were skipped
    for (Case c : std::vector<Case>{
             {.ranks = 1, .stages = 1},
             {.ranks = 2, .stages = 2},
             {.ranks = 3, .stages = 3},  // the last stage has no parameters
             {.ranks = 4, .stages = 2, .accumulation = 4, .stage = 1},
             {.ranks = 4, .stages = 1, .accumulation = 2, .stage = 1},
             {.ranks = 6, .stages = 3, .accumulation = 4, .stage = 1},
             {.ranks = 4, .stages = 4, .schedule = "zb-h1"},
             {.ranks = 4, .stages = 2, .accumulation = 4, .stage = 1, .schedule = "interleaved", .recompute = 1},
             {.ranks = 2, .stages = 2, .schedule = "dualpipe-v"}}) {
      c.dtype = dtype;
      CHECK_MESSAGE(differing(one, pipeline_run(c, 6)) == "",
                    dtype << ", " << c.ranks << " ranks, " << c.stages << " stages, " << c.schedule);
    }
  }
}

TEST_CASE("pipeline engine: a checkpoint of any plan goes on under any other, to the bit") {
  for (const DType dtype : {f32, f16}) {
    const Tensors whole = plain_run({.dtype = dtype}, 6);
    const auto last = [](const Tensors& t) { return t.at("report").narrow(0, t.at("report").numel() - 5, 5); };
    struct Row {
      Case from;
      bool from_plain;
      Case to;
      bool to_plain;
    };
    for (Row row : std::vector<Row>{{{.ranks = 2, .stages = 2}, false, {.ranks = 4, .stages = 4}, false},
                                    {{.ranks = 4, .stages = 2, .accumulation = 4, .stage = 1},
                                     false,
                                     {.ranks = 2, .accumulation = 4, .stage = 3},
                                     true},
                                    {{.ranks = 3, .stages = 3}, false, {}, true},
                                    {{.ranks = 2, .accumulation = 4, .stage = 2},
                                     true,
                                     {.ranks = 6, .stages = 3, .accumulation = 4, .stage = 1},
                                     false},
                                    {{}, true, {.ranks = 2, .stages = 2, .schedule = "interleaved"}, false}}) {
      row.from.dtype = row.to.dtype = dtype;
      const TempDir folder;
      row.from_plain ? plain_run(row.from, 3, "", folder.path) : pipeline_run(row.from, 3, "", folder.path);
      Tensors resumed = row.to_plain ? plain_run(row.to, 6, folder.path) : pipeline_run(row.to, 6, folder.path);
      const std::string where = str(dtype, ", from ", row.from.ranks, " ranks and ", row.from.stages, " stages to ",
                                    row.to.ranks, " and ", row.to.stages);
      CHECK_MESSAGE(equal(last(whole), last(resumed)), where);
      resumed["report"] = whole.at("report");
      CHECK_MESSAGE(differing(whole, resumed) == "", where);
    }
  }
}

TEST_CASE("pipeline engine: the whole state on one rank; one file of 16 bits") {
  const TempDir folder;
  EngineBase::WholeState state;
  on_ranks<int>(4, [&](int rank) {
    EngineBase e = make_engine({.ranks = 4, .stages = 2, .accumulation = 4, .stage = 1});
    e.train_batch();
    e.train_batch();
    auto mine = e.whole_state();
    CHECK(mine.model.empty() == (rank != 0));
    if (rank == 0) state = std::move(mine);
    REQUIRE(e.save_16bit_model(folder.path));
    return 0;
  });
  CHECK(state.model.size() == 8);
  CHECK(state.optimizer.tensors.size() == 16);
  CHECK(state.optimizer.numbers.at("state.b.weight.step") == 2);
  const auto file = data::SafeTensors::open(folder / "model.safetensors");
  for (const auto& [name, tensor] : state.model) CHECK(equal(file.tensor(name), tensor));
  const Tensors expected = plain_run({}, 2);
  for (const auto& [name, tensor] : state.model) CHECK_MESSAGE(equal(tensor, expected.at(name)), name);
}

TEST_CASE("engine: train_batch() goes on with the data where a checkpoint was, also when it is loaded in mid-run") {
  const TempDir folder;
  for (const bool cut : {false, true}) {
    on_ranks<int>(1, [&](int) {
      PipelineModule module = module_of(1);
      if (!cut) module.model = make_net(), module.layers.clear();
      EngineBase e = engine::initialize(
          std::move(module),
          {.optimizer = make_adamw, .training_data = data::share(samples()), .config = config_of(0, 2), .log = quiet});
      CHECK(e.in_parts() == cut);
      e.train_batch();
      const std::string at = folder / (cut ? "cut" : "whole");
      e.save_checkpoint(at);
      const double second = e.train_batch(), third = e.train_batch();
      REQUIRE(e.load_checkpoint(at));
      CHECK(e.train_batch() == second);
      CHECK(e.train_batch() == third);
      return 0;
    });
  }
}

TEST_CASE("pipeline engine: slices of whole tensors, for checkpoints") {
  struct Row {
    Shape whole;
    int64_t dim;
    std::vector<dist::Range> ranges;
  };
  for (const Row& row : std::vector<Row>{{{6, 4}, 0, {{2, 4}}},
                                         {{6, 4}, 1, {{1, 3}}},
                                         {{4}, 0, {{0, 4}}},
                                         {{2, 6, 3}, 1, {{0, 1}, {2, 3}, {4, 5}}},
                                         {{3, 5}, 1, {{0, 2}, {2, 5}}},
                                         {{6, 4}, 0, {{1, 1}}}}) {
    int64_t count = 1;
    for (int d = 0; d < row.whole.rank(); ++d) count *= row.whole[d];
    const Tensor whole = arange(double(count)).view(row.whole);
    std::vector<Tensor> parts;
    for (const dist::Range& r : row.ranges) parts.push_back(whole.narrow(int(row.dim), r.begin, r.size()));
    const Tensor slice = cat(parts, int(row.dim)).contiguous();
    for (int64_t begin = 0; begin <= slice.numel(); ++begin) {
      for (int64_t end = begin; end <= slice.numel(); ++end) {
        const Tensor part = slice.view({slice.numel()}).narrow(0, begin, end - begin);
        int64_t seen = 0;
        for (const auto& p : engine::of_whole(
                 {.name = "w", .shape = slice.shape(), .dtype = f32, .begin = begin, .end = end, .tensor = part},
                 row.whole, row.dim, row.ranges)) {
          CHECK(p.end > p.begin);
          CHECK(equal(p.tensor, whole.view({whole.numel()}).narrow(0, p.begin, p.end - p.begin)));
          seen += p.end - p.begin;
        }
        CHECK(seen == end - begin);
      }
    }
  }
}

TEST_CASE("pipeline engine: impossible settings are rejected on all ranks with a remedy") {
  struct Row {
    int ranks;
    std::function<void(PipelineModule&, InitializeArgs&, Config&)> change;
    const char* expected;
  };
  for (const Row& row : std::vector<Row>{
           {2, [](auto&, auto&, Config&c) { c.zero_optimization.stage = 2; },
            "zero2 shards gradients after every micro-batch, but a pipeline sums all micro-batches first; use zero1. "
            "The nearest plan that works: dp2+zero2"},
           {3, [](auto&m, auto&, Config&) { m.num_stages = 2; },
            "it is for 2 ranks, and there are 3. The nearest plan that works: pp3"},
           {2, [](auto&, auto&, Config&c) { c.pipeline.stages = 4; },
            "PipelineModule has num_stages 2, which contradicts config, where pipeline.stages is 4"},
           {2,
            [](auto&m, auto&, Config&c) {
              c.pipeline.partition = "parameters", c.given.insert("pipeline.partition"), m.partition_method = "uniform";
            },
            "partition_method uniform, which contradicts"},
           {2,
            [](auto&m, auto&, Config&c) {
              c.given.insert("pipeline.activation_checkpoint_interval"), m.activation_checkpoint_interval = 2;
            },
            "activation_checkpoint_interval 2, which contradicts"},
           {2, [](auto&, auto&, Config&c) { c.managed_gradient_accumulation = false; },
            "plans with pp or tp run whole steps; leave it out. The nearest plan that works: dp2"},
           {2, [](auto&, auto&, Config&c) { c.activation_checkpointing.enabled = true; },
            "pipeline.activation_checkpoint_interval; set that"},
           {2, [](auto&, auto&, Config&c) { c.data_types.grad_accum_dtype = "fp32"; }, "grad_accum_dtype"},
           {2, [](auto&, auto&, Config&c) { c.pipeline.partition = "by hand"; },
            "expected uniform, parameters, best or type:PATTERN"},
           {8, [](auto&m, auto&, Config&) { m.num_stages = 8; },
            "8 stages need 8 layers, the model has 5. The nearest plan that works: dp2+pp4"},
           {2, [](auto&, InitializeArgs&a, Config&) { a.optimizer = {}, a.lr_scheduler = {}; },
            "expected an optimizer, got none"},
           {2, [](auto&, InitializeArgs&a, Config&) { a.optimizer = {}; }, "expected the optimizer of lr_scheduler"},
           {2, [](auto&m, auto&, Config&) { m.layers[1].named("a"); }, "layers 0 and 1 are both called a"}}) {
    const std::string found = message([&] {
      on_ranks<int>(row.ranks, [&](int) {
        Config c = case_config({});
        PipelineModule m = module_of(2);
        m.partition_method = "";
        InitializeArgs a{.optimizer = make_adamw, .lr_scheduler = make_warmup, .log = quiet};
        row.change(m, a, c);
        a.config = c;
        engine::initialize(m, a);
        return 0;
      });
    });
    CHECK_MESSAGE(contains(found, row.expected), found);
  }
  on_ranks<int>(1, [](int) {
    EngineBase e = make_engine({});
    CHECK(contains(message([&] { e.backward(Variable(ones({1}), true)); }), "call train_batch()"));
    CHECK(contains(message([&] { e.step(); }), "[step] is not available with pp or tp"));
    CHECK(contains(message([&] { e.scale(Variable(ones({1}), true)); }), "call train_batch()"));
    e.eval();
    CHECK(contains(message([&] { e.train_batch(); }), "got eval()"));
    e.train();
    CHECK(std::isfinite(e.train_batch()));
    return 0;
  });
  CHECK(contains(message([] {
                   Net net;
                   Config c = case_config({});
                   c.pipeline.stages = 2;
                   on_ranks<int>(1, [&](int) { return int(engine::initialize(net, c).global_steps()); });
                 }),
                 "it is for 2 ranks, and there is 1"));
}
