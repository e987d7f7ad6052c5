// Pipelines under the engine, made of a list of layers: the bits of one rank, the whole state, rejected settings.
// Models in stages: plans_test.cpp.
#include <cmath>

#include "data/safetensors.h"
#include "engine/part.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;
using engine::EngineBase, engine::PipelineModule, engine::InitializeArgs;
using pipeline::LayerSpec, pipeline::Values, pipeline::layer;

namespace {

/// Net of tests/models.h as a list of layers with the same names, followed by a layer without parameters.
std::vector<LayerSpec> net_layers() {
  const auto dropped = [](const auto& fn) {
    return
        [fn](nn::Module* m, const Values& in) { return Values{dropout(fn(m->call(in.at(0))), 0.2, m->is_training())}; };
  };
  return {layer<nn::Linear>({.in = 6, .out = 130}).named("a"),
          layer<nn::LayerNorm>({.shape = {130}}).named("norm").with(dropped([](const Variable& x) { return gelu(x); })),
          layer<nn::Linear>({.in = 130, .out = 97}).named("b").with(dropped([](const Variable& x) { return relu(x); })),
          layer<nn::Linear>({.in = 97, .out = 3}).named("c"),
          // makes the last of three stages one without parameters
          layer("identity", [](const Variable& x) { return x; })};
}

PipelineModule module_of(int stages) {
  PipelineModule m{.layers = net_layers(), .loss_fn = loss_of_scores, .num_stages = stages};
  if (stages > 1) m.partition_method = "uniform";
  if (stages == 3) m.bounds = {0, 2, 4, 5};
  return m;
}

EngineBase make_engine(int stages, const Config& config) {
  return engine::initialize(module_of(stages), {.optimizer = make_adamw,
                                                .training_data = data::share(samples()),
                                                .lr_scheduler = make_warmup,
                                                .config = config,
                                                .log = quiet});
}

}  // namespace

TEST_CASE("pipeline engine: a list of layers is bit-identical to one rank in any stages, also without parameters") {
  const auto run = [](int ranks, int stages, int zero) {
    return merged(on_ranks<Tensors>(ranks, [&](int) {
      EngineBase e = make_engine(stages, config_of(zero, 8 * stages / ranks));
      std::vector<double> losses;
      for (int step = 0; step < 3; ++step) losses.push_back(e.train_batch());
      Tensors mine = full_parameters(e, e.pipeline().module());
      mine["losses"] = Tensor::from(losses, {3});
      return mine;
    }));
  };
  const Tensors one = run(1, 1, 0);
  for (const auto& [ranks, stages, zero] : {std::tuple{2, 2, 0}, {3, 3, 0}, {4, 4, 0}, {4, 2, 1}, {6, 3, 1}})
    CHECK_MESSAGE(differing(one, run(ranks, stages, zero)) == "", ranks, " ranks, ", stages, " stages");
}

TEST_CASE("pipeline engine: the whole state on one rank; one file of 16 bits") {
  const TempDir folder;
  EngineBase::FullState state, expected;
  for (const int stages : {1, 2}) {
    on_ranks(stages * stages, [&](int rank) {
      EngineBase e = make_engine(stages, config_of(stages - 1, 8 / stages));
      e.train_batch();
      e.train_batch();
      auto mine = e.full_state();
      CHECK(mine.model.empty() == (rank != 0));
      if (rank == 0) (stages == 1 ? expected : state) = std::move(mine);
      REQUIRE(e.save_16bit_model(folder.path));
    });
  }
  CHECK(state.model.size() == 8);
  CHECK(state.optimizer.tensors.size() == 16);
  CHECK(state.optimizer.numbers.at("state.b.weight.step") == 2);
  const auto file = data::SafeTensors::open(folder / "model.safetensors");
  for (const auto& [name, tensor] : state.model) CHECK(equal(file.tensor(name), tensor));
  CHECK(differing({state.model.begin(), state.model.end()}, {expected.model.begin(), expected.model.end()}) == "");
}

TEST_CASE("engine: train_batch() goes on with the data where a checkpoint was, also when it is loaded in mid-run") {
  const TempDir folder;
  for (const bool cut : {false, true}) {
    on_ranks(1, [&](int) {
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
    });
  }
}

TEST_CASE("pipeline engine: layers by their type alone, and activation_checkpointing of the configuration") {
  const auto run = [](int stages, const char* section) {
    return merged(on_ranks<Tensors>(stages, [&](int) {
      const std::string text =
          str(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2)", section, "}");
      EngineBase e = engine::initialize({.layers = {layer<nn::Linear>({.in = 6, .out = 9}), layer<nn::ReLU>(),
                                                    layer<nn::Linear>({.in = 9, .out = 3})},
                                         .loss_fn = loss_of_scores,
                                         .num_stages = stages},
                                        {.optimizer = make_adamw,
                                         .training_data = data::share(samples()),
                                         .config = engine::config_from_json(text),
                                         .log = quiet});
      for (int step = 0; step < 2; ++step) e.train_batch();
      CHECK(!e.config().activation_checkpointing.enabled);  // the stages do it
      CHECK(e.config().pipeline.activation_checkpoint_interval == (*section ? 1 : 0));
      return full_parameters(e, e.pipeline().module());
    }));
  };
  const Tensors plain = run(2, "");
  for (const char* section : {R"(, "activation_checkpointing": {"enabled": true})",
                              R"(, "activation_checkpointing": {"partition_activations": true})"})
    CHECK_MESSAGE(differing(plain, run(2, section)) == "", section);
}

TEST_CASE("pipeline engine: slices of whole tensors, for checkpoints") {
  struct Row {
    Shape full;
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
    for (int d = 0; d < row.full.rank(); ++d) count *= row.full[d];
    const Tensor full = arange(double(count)).view(row.full);
    std::vector<Tensor> parts;
    for (const dist::Range& r : row.ranges) parts.push_back(full.narrow(int(row.dim), r.begin, r.size()));
    const Tensor slice = cat(parts, int(row.dim)).contiguous();
    for (int64_t begin = 0; begin <= slice.numel(); ++begin) {
      for (int64_t end = begin; end <= slice.numel(); ++end) {
        const Tensor part = slice.view({slice.numel()}).narrow(0, begin, end - begin);
        int64_t observed = 0;
        for (const auto& p : engine::of_full(
                 {.name = "w", .shape = slice.shape(), .dtype = f32, .begin = begin, .end = end, .tensor = part},
                 row.full, row.dim, row.ranges)) {
          CHECK(p.end > p.begin);
          CHECK(equal(p.tensor, full.view({full.numel()}).narrow(0, p.begin, p.end - p.begin)));
          observed += p.end - p.begin;
        }
        CHECK(observed == end - begin);
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
           {2, [](auto&, auto&, Config&c) { c.data_types.grad_accum_dtype = "fp32"; }, "grad_accum_dtype"},
           {2, [](auto&, auto&, Config&c) { c.pipeline.partition = "by hand"; },
            "expected uniform, parameters, best or type:PATTERN"},
           {8, [](auto&m, auto&, Config&) { m.num_stages = 8; },
            "8 stages need 8 layers, the model has 5. The nearest plan that works: dp2+pp4"},
           {2, [](auto&, InitializeArgs&a, Config&) { a.optimizer = {}, a.lr_scheduler = {}; },
            "expected an optimizer, got none"},
           {2, [](auto&, InitializeArgs&a, Config&) { a.optimizer = {}; }, "expected the optimizer of lr_scheduler"},
           {2, [](auto&m, auto&, Config&) { m.layers[1].named("a"); }, "layers 0 and 1 are both called a"}}) {
    CHECK_ERROR(on_ranks(row.ranks,
                         [&](int) {
                           Config c = config_of(0, 8);
                           PipelineModule m = module_of(2);
                           m.partition_method = "";
                           InitializeArgs a{.optimizer = make_adamw, .lr_scheduler = make_warmup, .log = quiet};
                           row.change(m, a, c);
                           a.config = c;
                           engine::initialize(m, a);
                         }),
                row.expected);
  }
  on_ranks(1, [](int) {
    EngineBase e = make_engine(1, config_of(0, 8));
    CHECK_ERROR(e.backward(Variable(ones({1}), true)), "call train_batch()");
    CHECK_ERROR(e.step(), "[step] is not available with pp or tp");
    CHECK_ERROR(e.scale(Variable(ones({1}), true)), "call train_batch()");
    e.eval();
    CHECK_ERROR(e.train_batch(), "got eval()");
    e.train();
    CHECK(std::isfinite(e.train_batch()));
  });
  Net net;
  Config two = config_of(0, 8);
  two.pipeline.stages = 2;
  CHECK_ERROR(on_ranks(1, [&](int) { engine::initialize(net, two); }), "it is for 2 ranks, and there is 1");
}
