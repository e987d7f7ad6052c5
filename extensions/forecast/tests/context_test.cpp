// The bytes that plan predicts for context parallelism are those that ring attention sends.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "extensions/forecast/plan.h"
#include "nn/models/gpt.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "pipeline/layers.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("context: the ring sends as many bytes as lockstep plan predicts") {
  constexpr int64_t vocab = 11, length = 16;
  const nn::GPT::Options sizes{.vocab = vocab, .context = length, .layers = 2, .width = 16, .heads = 4};
  for (const char* plan : {"cp2", "cp4", "pp2+cp2", "cp2+tp2"}) {
    const parallel::Plan axes = parallel::parse_plan(plan);
    Config config = config_of(0, 4);
    config.gradient_clipping = 0.5;
    const auto planned = engine::plan_parts(config, engine::shape_of<nn::GPT>(sizes), axes);
    const auto sent = on_ranks<int64_t>(axes.ranks(), [&](int) {
      const parallel::Mesh mesh(axes, dist::world());
      manual_seed(1);
      const auto model = std::make_shared<nn::GPT>(sizes);
      model->to(f64);
      engine::InitializeArgs args{
          .optimizer = [](nn::Module& m) { return std::make_unique<optim::SGD>(m.parameters(), optim::SGDOptions{}); },
          .config = config,
          .mesh = &mesh,
          .log = quiet};
      if (axes.tp > 1) args.sharded = tensor_parallel::apply(*model, mesh.tp());
      sequence::share_sequences(*model, {std::shared_ptr<void>(), &mesh.cp()}, {});
      engine::EngineBase e =
          engine::initialize(engine::PipelineModule{.model = model, .num_stages = axes.pp}, std::move(args));
      const int64_t before = mesh.cp().traffic().sent;
      e.train_batch([&](int64_t) {
        const Tensor tokens =
            sequence::slice(randint(0, vocab, {2, length}), 1, axes.cp, mesh.at().cp, sequence::TokenOrder::zigzag);
        return pipeline::Sample{{tokens}, {tokens}};
      });
      return mesh.cp().traffic().sent - before;
    });
    for (int rank = 0; rank < axes.ranks(); ++rank)
      // Twice, because the plan is for f32 and this run is in f64.
      CHECK(double(sent[size_t(rank)]) == 2 * planned.context_traffic[size_t(coordinates_of(axes, rank).pp)]);
  }
}
