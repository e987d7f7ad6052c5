// Pipeline stages with tensor parallelism under the engine: errors of the data, and a rank that dies. What they train:
// plans_test.cpp.
#include <csignal>

#include "tests/dist/outcomes.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;

namespace {

const Subject sharded = blocks_subject();

/// Runs a step under a plan with stages and slices.
void one_step(const parallel::Plan& plan, int64_t accumulation, const pipeline::Data& data) {
  const parallel::Mesh mesh(plan, dist::world());
  engine::InitializeArgs args{
      .optimizer = make_adamw, .config = config_of(1, accumulation), .mesh = &mesh, .log = quiet};
  engine::PipelineModule module = sharded.make(mesh);
  module.partition_method = "uniform";
  args.sharded = tensor_parallel::apply(*module.model, mesh.tp());
  engine::EngineBase(std::move(module), std::move(args)).train_batch(data);
}

}  // namespace

TEST_CASE("slices: all ranks raise an error that names its location") {
  struct Row {
    std::function<std::optional<pipeline::Sample>(int rank, int64_t micro, pipeline::Sample)> data;
    const char* expected;
  };
  const parallel::Plan plan = parallel::parse_plan("dp2+pp2+tp2+zero1");
  const Row rows[] = {
      {[](int, int64_t micro, const pipeline::Sample& sample) {
         return micro == 3 ? std::nullopt : std::optional(sample);
       },
       "the data ended before micro-batch 3 of step 0, expected 4 micro-batches"},
      {[](int, int64_t micro, pipeline::Sample sample) {
         if (micro == 1) sample.inputs[0] = sample.inputs[0].narrow(0, 0, 1);
         return sample;
       },
       "make all micro-batches the same shape, or set dynamic_shapes"},
      {[](int rank, int64_t micro, const pipeline::Sample& sample) {
         if (rank == 6 && micro == 2) fail("no such file");
         return sample;
       },
       "no such file"},
  };
  for (const Row& row : rows) {
    const auto step = [&](int rank) {
      one_step(plan, 2, [&](int64_t micro) { return row.data(rank, micro, sharded.sample(0, micro)); });
    };
    for (const std::string& text : outcomes(8, step, 30)) CHECK_MESSAGE(contains(text, row.expected), text);
  }
}

TEST_CASE("slices: a rank that dies is named by all others") {
  const std::string text = outcome(
      4,
      [](int rank) {
        one_step(parallel::parse_plan("pp2+tp2+zero1"), 4, [&](int64_t micro) {
          if (rank == 3 && micro == 2) raise(SIGKILL);
          return sharded.sample(0, micro);
        });
      },
      {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(30), .heartbeat = dist::Seconds(0.5)});
  CHECK_MESSAGE(contains(text, "rank 3"), text);
}
