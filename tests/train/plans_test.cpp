// Every combination of plan, ZeRO, offload, precision, recomputation and optimizer either trains like one process or is
// rejected by check_plan().
#include <doctest/doctest.h>

#include <map>

#include "engine/check_plan.h"
#include "engine/params.h"
#include "engine/pipeline_module.h"
#include "tests/block_pattern.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t vocab = 12, context = 8, micro_batches = 4;

struct Mix {
  std::string plan, precision, optimizer, offload;
  bool recompute = false, dropout = false, llama = false, sparse = false;
  std::string text() const {
    return str(llama ? "a Llama, " : "", plan, ", ", precision, ", ", optimizer, ", offload ", offload,
               recompute ? ", recomputed" : "", dropout ? ", dropout" : "", sparse ? ", sparse attention" : "");
  }
};

engine::Config config_of(const Mix& m, const parallel::Plan& plan) {
  engine::Config c{.train_micro_batch_size_per_gpu = 2,
                   .gradient_accumulation_steps = micro_batches / plan.dp,
                   .gradient_clipping = 1};
  c.origin = "a mix";
  c.zero_optimization.stage = std::max(plan.zero, 0);
  c.zero_optimization.reduce_bucket_size = 300;
  c.zero_optimization.offload_optimizer.device = m.offload == "cpu" ? zero::Offload::cpu : zero::Offload::none;
  c.optimizer = {.type = m.optimizer,
                 .params = data::parse_json(
                     m.optimizer == "OneBitAdam" ? R"({"lr": 0.01, "freeze_step": 1})" : R"({"lr": 0.01})", "params")};
  const bool in_parts = plan.pp * plan.tp > 1;
  if (m.recompute && in_parts) c.pipeline.activation_checkpoint_interval = 1;
  c.activation_checkpointing.enabled = m.recompute && !in_parts;
  c.fp16 = {.enabled = m.precision == "fp16", .initial_scale_power = 4};
  c.bf16.enabled = m.precision == "bf16";
  return c;
}

Subject subject_of(const Mix& m) {
  Subject s{.name = m.llama ? "Llama" : "GPT", .optimizer = {}};
  s.make = [=](const parallel::Mesh&) {
    manual_seed(3);
    nn::GPT::Options sizes{
        .vocab = vocab, .context = context, .layers = 2, .width = 8, .heads = 4, .dropout = m.dropout ? 0.1 : 0};
    if (m.llama) sizes = as_llama(sizes), sizes.head_size = 4, sizes.inner = 12;
    const auto model = std::make_shared<nn::GPT>(sizes);
    if (m.sparse)
      for (auto& block : model->blocks.items) block->attention.set_sparsity(std::make_shared<Strided>(2));
    engine::PipelineModule module{.model = model};
    if (m.precision == "autocast") module.autocast = bf16;
    return module;
  };
  s.sample = [](int64_t, int64_t) {  // drawn by the engine's generator
    const Tensor tokens = randint(0, vocab, {2, context + 1});
    return pipeline::Sample{{tokens.narrow(1, 0, context).contiguous()}, {tokens.narrow(1, 1, context).contiguous()}};
  };
  return s;
}

Tensors train_mix(const Mix& m) {
  return testing::train(subject_of(m),
                        {.plan = m.plan, .micros = micro_batches, .steps = 2, .change = [&](engine::Config& c) {
                           c = config_of(m, parallel::parse_plan(m.plan));
                         }});
}

/// Those of the optimizers that this build has.
std::vector<std::string> built(std::vector<std::string> optimizers) {
  std::erase_if(optimizers, [](const std::string& name) { return !engine::type_named(name); });
  return optimizers;
}

/// The allowed difference to one process: 0 unless sums are split.
Closeness tolerance(const Mix& m, const parallel::Plan& plan) {
  const bool onebit = m.optimizer == "OneBitAdam";
  if (plan.tp * plan.cp == 1 && !onebit && (m.precision != "fp16" || plan.pp == 1)) return {};
  const double off = plan.tp * plan.cp == 1 && !onebit ? 2e-2 : m.precision != "f32" ? 0.1 : onebit ? 0.2 : 1e-4;
  return {off, onebit ? INFINITY : off, INFINITY};  // the norm of OneBitAdam is of one rank's gradients
}

}  // namespace

TEST_CASE("plans: every mix trains as one process does, or is refused by check_plan") {
  std::map<std::string, Tensors> references;
  int trained = 0, refused = 0;
  const std::vector<std::string> axes = {"dp1",     "dp2",     "dp4",         "pp2", "dp2+pp2", "pp4",     "tp2",
                                         "dp2+tp2", "pp2+tp2", "dp2+pp2+tp2", "cp2", "dp2+cp2", "pp2+cp2", "cp2+tp2"};
  const std::vector<std::string> precisions = {"f32", "bf16", "fp16", "autocast"},
                                 optimizers = built({"AdamW", "Lamb", "OneBitAdam"});
  size_t round = 0;
  for (const std::string& axis : axes) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const std::string& precision : precisions) {
        for (const std::string& optimizer : optimizers) {
          ++round;  // alternates the other options
          for (const bool llama : {false, true}) {
            if (llama && (optimizer != "AdamW" || precision == "fp16" || precision == "autocast")) continue;
            const Mix m{axis + "+zero" + std::to_string(zero),
                        precision,
                        optimizer,
                        zero > 0 && optimizer == "AdamW" && round % 4 < 2 ? "cpu" : "none",
                        round / 3 % 2 == 0,
                        round % 2 && axis.find("cp") == axis.npos && axis.find("tp") == axis.npos,
                        llama,
                        round % 5 == 0 && axis.find("cp") == axis.npos};
            const parallel::Plan plan = parallel::parse_plan(m.plan);
            const engine::Config config = config_of(m, plan);
            const auto reasons = engine::reasons_against(config, plan, {.ranks = plan.ranks()});
            if (!reasons.empty()) {
              const std::string said = message([&] { engine::check_plan(config, plan, {.ranks = plan.ranks()}); });
              CHECK_MESSAGE(contains(said, m.plan + " does not work with a mix: " + reasons[0]), m.text());
              CHECK_MESSAGE((contains(said, "The nearest plan that works: ") || contains(said, "No plan")), m.text());
              if (++refused % 16 == 0) CHECK_MESSAGE(contains(message([&] { train_mix(m); }), reasons[0]), m.text());
              continue;
            }
            Mix single{"dp1+zero0", m.precision, m.optimizer, "none", false, m.dropout, llama, m.sparse};
            auto& reference = references[single.text()];
            if (reference.empty()) reference = train_mix(single);
            Tensors found;
            CHECK_NOTHROW_MESSAGE(found = train_mix(m), m.text());
            REQUIRE_MESSAGE(found.size() == reference.size(), m.text());
            check_same(reference, found, tolerance(m, plan), m.text());
            ++trained;
          }
        }
      }
    }
  }
  CHECK(trained + refused >= 300);
  CHECK(trained >= (optimizers.size() == 3 ? 200 : 170));
  MESSAGE(trained << " mixes train, " << refused << " are refused");
}
