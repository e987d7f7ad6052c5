// Plans computed from shapes alone, compared with real models, optimizers and ranks.
#include <doctest/doctest.h>

#include <algorithm>

#include "extensions/forecast/plan.h"

#include "engine/params.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"
#include "tensor/memory.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace lockstep::engine;
using namespace testing;

namespace {

const nn::GPT::Options small{.vocab = 301, .context = 16, .layers = 2, .width = 40, .heads = 4};
const nn::GPT::Options large{.vocab = 50257, .context = 2048, .layers = 96, .width = 12288, .heads = 96};

Config config(const std::string& json) { return config_from_json(json); }

/// False if the configuration names Muon, and its extension was not built.
bool is_built(const std::string& body) {
  const auto& types = optimizer_types();
  return body.find("Muon") == body.npos ||
         std::any_of(types.begin(), types.end(), [](const NamedType& type) { return type.name == "Muon"; });
}

/// Freezes every other parameter.
void freeze(nn::Module& model) {
  const auto all = model.parameters();
  for (size_t i = 1; i < all.size(); i += 2) Variable(all[i]).requires_grad_(false);
}

/// The bytes of the optimizer's state on all ranks.
int64_t state_of(const std::vector<RankBytes>& ranks) {
  int64_t sum = 0;
  for (const RankBytes& b : ranks) sum += b.optimizer;
  return sum;
}

ModelShape shape_of_small(bool frozen) {
  const auto make = [&] {
    auto model = std::make_unique<nn::GPT>(small);
    if (frozen) freeze(*model);
    return model;
  };
  return shape_of(make, small.width, small.context, small.vocab);
}

/// Calls fn(number of ranks, whether to freeze part of the model) for each row.
void for_each_row(const std::vector<std::pair<int, bool>>& rows, const std::function<void(int, bool)>& fn) {
  for (const auto& row : rows) {
    CAPTURE(row.first);
    CAPTURE(row.second);
    fn(row.first, row.second);
  }
}

/// A real model with the optimizers and the ZeRO stage of a configuration. backward() trains on one random sample.
struct TrainedModel {
  nn::GPT model;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  std::unique_ptr<zero::Zero> zero;

  TrainedModel(const nn::GPT::Options& options, const Config& c, bool frozen) : model(options) {
    model.to(parameter_dtype(c));
    if (frozen) freeze(model);
    auto trained = model.named_parameters();
    std::erase_if(trained, [](const auto& p) { return !p.variable.requires_grad(); });
    optimizers = make_optimizers(c, trained);
    std::vector<optim::Optimizer*> all;
    for (const auto& o : optimizers) all.push_back(o.get());
    zero = std::make_unique<zero::Zero>(model, all, zero_options(c));
  }
  void backward(const nn::GPT::Options& o) {
    manual_seed(3);
    const Tensor tokens = randint(0, o.vocab, {1, o.context});
    model.loss(tokens, tokens).backward();
  }
};

std::string text_of(const std::string& module, const std::vector<std::string>& names, const zero::Layout& l,
                    bool persistent) {
  std::string text = str(module, persistent ? " whole" : " gathered", " owner ", l.owner, " shard ", l.shard, ":");
  for (size_t i = 0; i < names.size(); ++i) text += str(" ", names[i], " ", l.sizes[i], " at ", l.offsets[i]);
  return text;
}

}  // namespace

TEST_CASE("plan: the shapes of a GPT match nn::GPT") {
  for (const nn::GPT::Options& o :
       {small, nn::GPT::Options{.layers = 1, .width = 8, .heads = 1, .inner = 5, .tied = false},
        nn::GPT::Options{.layers = 3, .width = 12, .heads = 2, .bias = false}}) {
    nn::GPT model(o);
    const ModelShape shape = shape_of<nn::GPT>(o);
    const auto real = model.named_parameters();
    REQUIRE(shape.parameters.size() == real.size());
    for (size_t i = 0; i < real.size(); ++i) {
      CHECK(shape.parameters[i].name == real[i].name);
      CHECK(shape.parameters[i].shape == real[i].variable.shape());
    }
  }
  CHECK(shape_of<nn::GPT>({.vocab = 50257, .context = 1024, .layers = 12, .width = 768, .heads = 12}).numel() ==
        124'439'808);  // GPT-2
  CHECK(shape_of<nn::GPT>(large).numel() / 1'000'000'000 == 174);
  CHECK_ERROR(shape_of<nn::GPT>({.width = 10, .heads = 3}), "expected heads to divide embed 10");
}

TEST_CASE("plan: a running model gives the figures that its options give") {
  nn::GPT model(small);
  const ModelShape asked = shape_of<nn::GPT>(small);
  ModelShape shape = shape_of(static_cast<nn::Module&>(model), 0, small.context, small.vocab);
  const nn::LayerList list = model.layers();
  const Tensor tokens = randint(0, small.vocab, {2, small.context});
  measure(shape, model, list, {tokens}, [&](const Variable& scores) { return list.loss(scores, {tokens}); });
  CHECK(shape.width == small.width);
  REQUIRE(shape.list.size() == asked.list.size());
  for (size_t i = 0; i < shape.list.size(); ++i) {
    const auto &layer = shape.list[i], &other = asked.list[i];
    CAPTURE(layer.kind);
    CHECK(shape.flops(layer) == doctest::Approx(asked.flops(other)));
    CHECK(shape.flops(layer, 2) <= shape.flops(layer));
    if (i + 1 < shape.list.size()) CHECK(layer.out == doctest::Approx(small.width));
    CHECK(layer.forward > 0);
    CHECK(layer.backward > 0);
  }
  for (const auto& p : model.named_parameters()) CHECK(!p.variable.grad().defined());
  const ModelShape read = model_shape_from(data::parse_json(to_json(shape).dump(), "test"), "test");
  CHECK(to_json(read) == to_json(shape));
  CHECK(read.forward_flops() == shape.forward_flops());
  CHECK(read.parameters[0].sharded(2).shape == asked.parameters[0].sharded(2).shape);
  CHECK_ERROR(model_shape_from(data::Json::Object{{"name", "x"}}, "an answer"), "an answer");
}

TEST_CASE("plan: units and owners match ZeRO") {
  const std::string bodies[] = {
      R"("optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 0})",
      R"("optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1, "reduce_bucket_size": 10000})",
      R"("optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 1})",
      R"("optimizer": {"type": "Muon"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 3000})",
      R"("optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3})",
      R"("optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0})",
      R"("optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 1e5, "stage3_model_persistence_threshold": 9000})",
      R"("optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3, "stage3_module_granularity_threshold": 20000, "stage3_param_persistence_threshold": 41})",
  };
  for (const std::string& body : bodies) {
    if (!is_built(body)) continue;
    CAPTURE(body);
    for_each_row({{1, false}, {2, false}, {3, false}, {4, false}, {3, true}}, [&](int ranks, bool frozen) {
      const Config c = config("{\"train_micro_batch_size_per_gpu\": 1, " + body + "}");
      const Forecast p = plan(c, shape_of_small(frozen), ranks);
      const auto texts_of = [](const std::vector<zero::PlannedUnit>& units, const auto& parameters) {
        std::vector<std::string> texts;
        for (const zero::PlannedUnit& u : units) {
          std::vector<std::string> names;
          for (const size_t i : u.parameters) names.push_back(parameters[i].name);
          texts.push_back(text_of(u.module, names, u.layout, u.persistent));
        }
        return texts;
      };
      const std::vector<std::string> planned = texts_of(p.units, p.model.parameters);
      on_ranks(ranks, [&](int) {
        TrainedModel t(small, c, frozen);
        const std::vector<std::string> real = texts_of(t.zero->units(), t.model.named_parameters());
        LOCKSTEP_CHECK(real == planned, "expected the planned units, got ", real.size(), " for ", planned.size(), "\n",
                       real.empty() ? "" : real[0], "\n", planned.empty() ? "" : planned[0]);
      });
    });
  }
}

TEST_CASE("plan: bytes of each rank match the ledger") {
  const std::string bodies[] = {
      R"("optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 0})",
      R"("optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1})",
      R"("optimizer": {"type": "SGD", "params": {"momentum": 0.9}}, "zero_optimization": {"stage": 2})",
      R"("optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}, "communication_data_type": "fp32", "zero_optimization": {"stage": 2})",
      R"("optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3})",
      R"("optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0})",
      R"("optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})",
  };
  for (const std::string& body : bodies) {
    CAPTURE(body);
    for_each_row({{1, false}, {2, false}, {3, false}, {2, true}}, [&](int ranks, bool frozen) {
      const Config c = config("{\"train_micro_batch_size_per_gpu\": 1, " + body + "}");
      const Forecast p = plan(c, shape_of_small(frozen), ranks);
      on_processes(ranks, [&](int rank) {
        const auto held = [](Memory kind) { return memory_report().category[int(kind)].current; };
        const int64_t before[] = {held(Memory::parameter), held(Memory::gradient), held(Memory::optimizer),
                                  held(Memory::offload)};
        TrainedModel t(small, c, frozen);
        t.backward(small);
        t.zero->step();
        t.backward(small);
        const auto expect = [&](const char* what, int64_t got, int64_t wanted) {
          LOCKSTEP_CHECK(got == wanted, what, ": expected ", wanted, " bytes, got ", got);
        };
        const RankBytes& b = p.bytes[size_t(rank)];
        expect("parameters", held(Memory::parameter) - before[0], b.parameters);
        expect("gradients", held(Memory::gradient) - before[1], b.gradients);
        expect("optimizer", held(Memory::optimizer) - before[2], b.optimizer);
        expect("offload", held(Memory::offload) - before[3], b.parameters_elsewhere + b.optimizer_elsewhere);
      });
    });
  }
}

TEST_CASE("plan: the traffic of a step equals the bytes that ranks send") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    for_each_row({{1, false}, {2, false}, {4, false}, {4, true}}, [&](int ranks, bool frozen) {
      const Config c = config(str(
          // Overflow checks are off, because they would send data, too.
          R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true, "check_grad_overflow": false}, "optimizer": {"type": "AdamW"}, "zero_optimization": {"ignore_unused_parameters": false, "stage": )",
          stage, "}}"));
      const Forecast p = plan(c, shape_of_small(frozen), ranks);
      on_ranks(ranks, [&](int) {
        TrainedModel t(small, c, frozen);
        for (int step = 0; step < 3; ++step) {  // in the first step, ranks also agree on the order of gradients
          const dist::Traffic before = dist::world().traffic();
          t.backward(small);
          t.zero->step();
          const double sent = double(dist::world().traffic().sent - before.sent);
          if (step > 0)
            LOCKSTEP_CHECK(sent == p.gradient_traffic + p.parameter_traffic, "expected to send ", p.gradient_traffic,
                           " + ", p.parameter_traffic, " bytes, got ", sent);
        }
      });
    });
  }
}

TEST_CASE("plan: a model of 175 billion parameters on 1024 ranks, without its memory") {
  const Config c = config(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})");
  const Forecast p = plan(c, shape_of<nn::GPT>(large), 1024);
  const double psi = double(p.model.numel());
  CHECK(p.optimizer == "AdamW");
  CHECK(p.formula.total() == doctest::Approx(16 * psi / 1024));
  CHECK(state_of(p.bytes) == 12 * p.model.numel());  // each element's state has one owner
  CHECK(double(p.bytes[0].total() - p.bytes[0].buffers) < 1.05 * p.formula.total());
  // Two micro-batches, 3 psi elements each, 2 bytes per element.
  CHECK(p.gradient_traffic + p.parameter_traffic == doctest::Approx(2 * 3 * 2 * psi).epsilon(0.02));

  const Speeds speeds{.flops = 1e14, .bandwidth = 1e11, .memory = 1e12};
  const auto full = [&](const Config& with) { return plan_parts(with, p.model, {.dp = 1024}); };
  const PredictedTime t = predict(full(c), speeds),
                      faster = predict(full(c), {.flops = 2e14, .bandwidth = 2e11, .memory = 2e12});
  CHECK(t.compute == doctest::Approx(6 * psi * 2048 * 2 / 1e14).epsilon(0.03));
  CHECK(t.step == doctest::Approx(2 * faster.step));
  Config checkpointed = c;
  checkpointed.activation_checkpointing.enabled = true;
  CHECK(predict(full(checkpointed), speeds).compute == doctest::Approx(t.compute * 4 / 3));
  CHECK_ERROR(plan(config(R"({"train_batch_size": 7})"), p.model, 2), "train_batch_size 7 is not");
}

TEST_CASE("plan: memory of optimizer state") {
  struct Row {
    const char* body;
    int64_t bytes;
    const char* name;
  };
  const Row rows[] = {
      {R"("optimizer": {"type": "AdamW"})", 8, "AdamW"},
      {R"("optimizer": {"type": "AdamW", "params": {"amsgrad": true}})", 12, "AdamW"},
      {R"("fp16": {"enabled": true}, "optimizer": {"type": "Adam"})", 12, "AdamW"},
      {R"("optimizer": {"type": "SGD"})", 0, "SGD"},
      {R"("bf16": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"momentum": 0.9}})", 8, "SGD"},
      {R"("optimizer": {"type": "Lion"})", 4, "Lion"},
      {R"("optimizer": {"type": "Lamb"})", 8, "LAMB"},
      {R"("optimizer": {"type": "Muon"})", 4, "Muon and AdamW"},
      {R"("optimizer": {"type": "OneBitAdam"})", 16, "AdamW with error feedback"},
      {R"("seed": 1)", 8, "AdamW"},
  };
  for (const Row& row : rows) {
    if (!is_built(row.body)) continue;
    CAPTURE(std::string(row.body));
    const Forecast p =
        plan(config(std::string("{\"train_batch_size\": 1, ") + row.body + "}"), shape_of<nn::GPT>(small), 1);
    CHECK(p.optimizer == row.name);
    CHECK(p.state_bytes[2 + 2] == row.bytes);  // blocks.0.attention.in_proj.weight
  }
}

TEST_CASE("plan of axes: memory and traffic of each stage, by formulas") {
  const ModelShape model = shape_of<nn::GPT>({.vocab = 64, .context = 16, .layers = 4, .width = 32, .heads = 4});
  const Config c = engine::config_from_json(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "optimizer": {"type": "AdamW"}})");
  const auto made = [&](const char* text, const Config& config) {
    return engine::plan_parts(config, model, parallel::parse_plan(text));
  };
  const double activation = 2 * 16 * 32 * 4, table = 64 * 32;

  const auto two = made("pp2", c);
  CHECK(two.bounds.size() == 3);
  // Both stages hold the tied embedding table.
  CHECK(two.stages[0].model.numel() + two.stages[1].model.numel() == model.numel() + int64_t(table));
  CHECK(two.stage_traffic == std::vector<double>{4 * activation, 4 * activation + 4 * table * 4});
  CHECK(two.data_parallel_traffic(0) == 0);
  CHECK(two.tensor_parallel_traffic[1] == 0);
  CHECK(two.formula == doctest::Approx(1. / 5));
  CHECK(two.bubble >= two.formula);
  CHECK(two.flops[0] + two.flops[1] == doctest::Approx(model.forward_flops()));
  // With many micro-batches a pipeline idles only because stages differ, and a step takes as long as its slowest stage.
  for (const char* schedule : {"1f1b", "zb-h1", "dualpipe-v"}) {
    Config many = engine::config_from_json(
        str(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 400, "pipeline": {"schedule": ")",
            schedule, R"("}})"));
    const auto plan = made("pp3", many);
    const double highest = *std::max_element(plan.flops.begin(), plan.flops.end()), mean = model.forward_flops() / 3,
                 lost = 1 - mean / highest;
    CAPTURE(schedule);
    CHECK(lost > 0.01);
    CHECK(plan.bubble > lost - 1e-9);
    CHECK(plan.bubble < lost + 0.01);
    const auto time = engine::predict(plan, {.flops = 1e9, .bandwidth = 1e18, .memory = 1e18});
    CHECK(time.step == doctest::Approx(time.compute).epsilon(0.02));
  }

  const auto sharded = made("tp2", c);
  int64_t full = 0;  // replicated by tensor-parallel ranks: positions, norms, biases of row-parallel layers
  for (const auto& p : model.parameters)
    if (p.name.find("norm") != p.name.npos || p.name == "positions.weight" || p.name.ends_with("out_proj.bias") ||
        p.name.ends_with("down.bias"))
      full += p.numel();
  CHECK(sharded.stages[0].model.numel() == full + (model.numel() - full) / 2);
  CHECK(sharded.tensor_parallel_traffic[0] == 4 * ((4 * 4 + 2) * 2 * 0.5 * activation + 2 * 2 * 16 * 4));
  CHECK(sharded.flops[0] == doctest::Approx(model.forward_flops() / 2));

  // If computing takes longer than communicating, all chunks but one are sent during products and cost no time.
  Config in_chunks = c;
  in_chunks.tensor_parallel.overlap_chunks = 2;
  const Speeds slow{.flops = 1e6, .bandwidth = 1e9, .memory = 1e18},
      sends{.flops = 1e18, .bandwidth = 1e9, .memory = 1e18};
  const auto waits = [&](const Config& with, const Speeds& speeds) {
    const engine::PredictedTime time = engine::predict(made("tp2", with), speeds);
    return (time.step - time.compute) / time.communication;
  };
  CHECK(waits(c, sends) == doctest::Approx(1).epsilon(1e-3));
  CHECK(waits(in_chunks, sends) == doctest::Approx(1).epsilon(1e-3));
  CHECK(waits(c, slow) < 0.6);
  CHECK(waits(in_chunks, slow) < 0.7 * waits(c, slow));

  Config zero = c;
  const auto all = made("dp2+pp2+tp2+zero1", zero);
  CHECK(all.config.zero_optimization.stage == 1);
  CHECK(all.stages[0].bytes.size() == 2);
  // Shards consist of whole blocks.
  CHECK(double(all.stages[1].bytes[0].optimizer) ==
        doctest::Approx(double(all.stages[1].model.numel()) * 8 / 2).epsilon(0.1));
  CHECK(all.data_parallel_traffic(0) > 0);
  const auto shared = made("dp2+pp2+cp2+zero1", zero), replicas = made("dp4+pp2+zero1", zero);
  CHECK(*shared.config.train_batch_size == 16);
  for (size_t s = 0; s < 2; ++s) {
    CHECK(shared.stage_traffic[s] - 4 * s * table * 4 == (two.stage_traffic[s] - 4 * s * table * 4) / 2);
    CHECK(shared.data_parallel_traffic(s) == replicas.data_parallel_traffic(s));
    CHECK(shared.context_traffic[s] == 4 * double(shared.stages[s].model.layers) * (2 * activation / 2) * (2 * 1 + 2));
  }
  // Experts: each rank holds a part of them, which ZeRO shards over the ranks with the same part.
  const ModelShape with_experts =
      shape_of<nn::GPT>({.vocab = 64, .context = 16, .layers = 4, .width = 32, .heads = 4}, {.experts = 4, .top_k = 2});
  // Two blocks have three more experts and a gate each.
  CHECK(with_experts.numel() == model.numel() + 2 * (3 * (2 * 4 * 32 * 32 + 5 * 32) + 4 * 32));
  const auto dealt = engine::plan_parts(zero, with_experts, parallel::parse_plan("dp4+ep2+zero1")),
             together = engine::plan_parts(zero, with_experts, parallel::parse_plan("dp4+zero1"));
  int64_t experts = 0;
  for (const auto& p : with_experts.parameters)
    if (p.expert >= 0) experts += p.numel();
  CHECK(dealt.stages[0].model.numel() == with_experts.numel() - experts / 2);
  // Summed over the ranks. Each half of the experts has two replicas, and each replica keeps half of their state.
  CHECK(state_of(dealt.stages[0].bytes) == state_of(together.stages[0].bytes));
  CHECK(dealt.flops[0] == doctest::Approx(with_experts.forward_flops()));
  CHECK(dealt.expert_traffic[0] == 4 * 2 * 0.5 * (2 * 2 * activation * 2 + 8 * 4));
  CHECK(together.expert_traffic[0] == 0);
  CHECK(dealt.data_parallel_traffic(0) < together.data_parallel_traffic(0));
  const engine::Speeds speeds{.flops = 1e9, .bandwidth = 1e9, .memory = 1e9};
  CHECK(engine::predict(shared, speeds).compute == doctest::Approx(engine::predict(two, speeds).compute / 2));
  CHECK(engine::predict(all, speeds).compute < engine::predict(two, speeds).compute);
  CHECK(engine::predict(two, speeds).step > engine::predict(two, speeds).compute);

  for (const auto& [text, part] : std::vector<std::pair<const char*, const char*>>{
           {"tp3", "tp3 does not divide the 4 attention heads"},
           {"pp13", "13 stages need 13 layers, the model has 12"},
           {"pp2+zero3", "zero3 shards gradients"},
           {"dp2+ep2", "dp2+ep2 shares experts, and the model has none"},
           {"cp16", "cp16 does not divide the 16 tokens of a sample (context) into 32 parts"}}) {
    const std::string found = message([&, t = text] { made(t, c); });
    CHECK_MESSAGE(contains(found, part), found);
  }
  const Config other = engine::config_from_json(
      R"({"train_micro_batch_size_per_gpu": 2, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 0}})");
  CHECK_ERROR(made("pp2", other), "contradicts config, where pipeline.stages is 4");
  CHECK_ERROR(made("pp4+zero1", other), "contradicts config, where zero_optimization.stage is 0");
}
