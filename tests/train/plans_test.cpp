// Every combination of plan, ZeRO, offload, precision, recomputation and optimizer either trains like one process or is
// rejected by check_plan().
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/check_plan.h"
#include "engine/engine.h"
#include "engine/params.h"
#include "nn/models/gpt.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/block_pattern.h"
#include "tests/messages.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t vocab = 12, context = 8, micro_batches = 4, steps = 2;

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
  if (m.recompute)
    (plan.pp * plan.tp > 1 ? c.pipeline.activation_checkpoint_interval : c.seed) = plan.pp * plan.tp > 1 ? 1 : c.seed;
  c.activation_checkpointing.enabled = m.recompute && plan.pp * plan.tp == 1;
  c.fp16 = {.enabled = m.precision == "fp16", .initial_scale_power = 4};
  c.bf16.enabled = m.precision == "bf16";
  return c;
}

/// The losses of all steps, and the last gradient norm.
std::vector<double> train_mix(const Mix& m) {
  const parallel::Plan plan = parallel::parse_plan(m.plan);
  const auto all = on_ranks<std::vector<double>>(plan.ranks(), [&](int) {
    manual_seed(3);
    nn::GPT::Options sizes{
        .vocab = vocab, .context = context, .layers = 2, .width = 8, .heads = 4, .dropout = m.dropout ? 0.1 : 0};
    if (m.llama) {
      sizes.kv_heads = 2, sizes.head_size = 4, sizes.inner = 12, sizes.norm = nn::Norm::rms;
      sizes.feed_forward = nn::FeedForward::swiglu, sizes.rope = nn::Rope{}, sizes.bias = sizes.tied = false;
    }
    const auto model = std::make_shared<nn::GPT>(sizes);
    if (m.sparse)
      for (auto& block : model->blocks.items) block->attention.set_sparsity(std::make_shared<Strided>(2));
    const parallel::Mesh mesh(plan, dist::world());
    engine::InitializeArgs args{.config = config_of(m, plan), .mesh = &mesh, .log = [](const std::string&) {}};
    if (plan.cp > 1) sequence::share_sequences(*model, {std::shared_ptr<void>(), &mesh.cp()});
    if (plan.tp > 1) args.sliced = tensor_parallel::apply(*model, mesh.tp());
    engine::PipelineModule module{.model = model, .num_stages = plan.pp};
    if (m.precision == "autocast") module.autocast = bf16;
    auto engine = engine::initialize(std::move(module), std::move(args));
    std::vector<double> report;
    while (engine.global_steps() < steps) {
      report.push_back(engine.train_batch([&](int64_t micro) {
        const Tensor tokens = randint(0, vocab, {2, context + 1});
        (void)micro;
        const auto part = [&](int64_t from) {
          return sequence::slice(tokens.narrow(1, from, context).contiguous(), 1, plan.cp, mesh.at().cp,
                                 sequence::ContextOptions().order_or_default());
        };
        return pipeline::Sample{{part(0)}, {part(1)}};
      }));
    }
    report.push_back(engine.get_global_grad_norm());
    return report;
  });
  for (const auto& other : all) CHECK(std::equal(other.begin(), other.end(), all[0].begin()));
  return all[0];
}

/// Those of the optimizers that this build has.
std::vector<std::string> built(std::vector<std::string> optimizers) {
  std::erase_if(optimizers, [](const std::string& name) { return !engine::type_named(name); });
  return optimizers;
}

/// The allowed relative difference to one process: 0 unless sums are split.
double tolerance(const Mix& m, const parallel::Plan& plan) {
  if (plan.tp * plan.cp == 1 && m.optimizer != "OneBitAdam") return m.precision == "fp16" && plan.pp > 1 ? 2e-2 : 0;
  return m.precision == "f32" ? m.optimizer == "OneBitAdam" ? 0.2 : 1e-4 : 0.1;
}

}  // namespace

TEST_CASE("plans: every mix trains as one process does, or is refused by check_plan") {
  std::map<std::string, std::vector<double>> references;
  int trained = 0, refused = 0;
  const std::vector<std::string> axes = {"dp1",     "dp2",     "dp4",         "pp2", "dp2+pp2", "pp4",     "tp2",
                                         "dp2+tp2", "pp2+tp2", "dp2+pp2+tp2", "cp2", "dp2+cp2", "pp2+cp2", "cp2+tp2"};
  const std::vector<std::string> precisions = {"f32", "bf16", "fp16", "autocast"},
                                 optimizers = built({"AdamW", "Lamb", "OneBitAdam"});
  size_t turn = 0;
  for (const std::string& axis : axes) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const std::string& precision : precisions) {
        for (const std::string& optimizer : optimizers) {
          ++turn;  // alternates the other options
          for (const bool llama : {false, true}) {
            if (llama && (optimizer != "AdamW" || precision == "fp16" || precision == "autocast")) continue;
            const Mix m{axis + "+zero" + std::to_string(zero),
                        precision,
                        optimizer,
                        zero > 0 && optimizer == "AdamW" && turn % 4 < 2 ? "cpu" : "none",
                        turn / 3 % 2 == 0,
                        turn % 2 && axis.find("cp") == axis.npos && axis.find("tp") == axis.npos,
                        llama,
                        turn % 5 == 0 && axis.find("cp") == axis.npos};
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
            Mix alone{"dp1+zero0", m.precision, m.optimizer, "none", false, m.dropout, llama, m.sparse};
            auto& reference = references[alone.text()];
            if (reference.empty()) reference = train_mix(alone);
            std::vector<double> found;
            CHECK_NOTHROW_MESSAGE(found = train_mix(m), m.text());
            REQUIRE_MESSAGE(found.size() == reference.size(), m.text());
            // except its norm, which differs between ranks
            for (size_t i = 0; i < found.size() - (optimizer == "OneBitAdam"); ++i) {
              const double off = std::abs(found[i] - reference[i]) / std::abs(reference[i]);
              CHECK_MESSAGE(off <= tolerance(m, plan), m.text() << ": " << found[i] << " and " << reference[i]);
            }
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
