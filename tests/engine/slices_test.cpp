// Pipeline stages with tensor parallelism under the engine: losses close to those of one process, checkpoints of any
// plan, faults.
#include <doctest/doctest.h>

#include <cmath>
#include <csignal>

#include "engine/engine.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;
using engine::EngineBase, engine::PipelineModule, engine::InitializeArgs;

namespace {

constexpr int64_t width = 8, length = 5;

/// Two transformer blocks between linear layers; layers() splits the blocks for tensor parallelism.
struct Two : nn::Layer<Two> {
  nn::Linear in{{.in = 3, .out = width}}, out{{.in = width, .out = 2}};
  nn::ModuleList<nn::TransformerBlock> blocks;
  Two() {
    for (int i = 0; i < 2; ++i)
      blocks.emplace_back(nn::TransformerBlock::Options{.width = width, .heads = 4, .dropout = 0.1});
  }
  void fields(nn::Fields& f) override { f("in", in)("blocks", blocks)("out", out); }
  nn::LayerList layers() override {
    return nn::LayerList().add(in).append(blocks[0].layers()).append(blocks[1].layers()).add(out);
  }
};

PipelineModule module_of(const parallel::Mesh& mesh, InitializeArgs& args) {
  manual_seed(7);
  const auto model = std::make_shared<Two>();
  if (mesh.plan().tp > 1) args.sliced = tensor_parallel::apply(*model, mesh.tp());
  return {.model = model,
          .loss_fn = [](const pipeline::Values& y,
                        const std::vector<Tensor>& targets) { return mse_loss(y[0].to(f32), targets[0]); },
          .partition_method = "uniform"};
}

std::optional<pipeline::Sample> sample_of(int64_t step, int64_t micro) {
  manual_seed(9);
  set_random_step(uint64_t(step), uint64_t(micro));
  const Tensor x = randn({2, length, 3});
  return pipeline::Sample{{x}, {x.narrow(2, 0, 2)}};
}

struct SlicedRun {
  std::string plan;
  int64_t accumulation = 4;
  DType dtype = f32;
  int64_t steps = 6;
  std::string load = {}, save = {};
};

/// Loss, norm and loss scale of each step, which must be equal on all ranks.
std::vector<double> train(const SlicedRun& run) {
  const parallel::Plan plan = parallel::parse_plan(run.plan);
  const auto all = on_ranks<std::vector<double>>(plan.ranks(), [&](int) {
    const parallel::Mesh mesh(plan, dist::world());
    Config c = config_of(std::max(plan.zero, 0), run.accumulation, run.dtype);
    c.gradient_clipping = 0.5;
    c.fp16.initial_scale_power = 17;
    c.fp16.loss_scale_window = 3;
    InitializeArgs args{.optimizer = make_adamw, .config = c, .mesh = &mesh, .log = [](const std::string&) {}};
    PipelineModule module = module_of(mesh, args);
    EngineBase e = engine::initialize(std::move(module), args);
    if (!run.load.empty()) REQUIRE(e.load_checkpoint(run.load));
    std::vector<double> report;
    while (e.global_steps() < run.steps) {
      report.push_back(e.train_batch([&](int64_t m) { return sample_of(e.global_steps(), m); }));
      report.push_back(std::isnan(e.get_global_grad_norm()) ? -1 : e.get_global_grad_norm());
      report.push_back(e.loss_scale());
    }
    if (!run.save.empty()) e.save_checkpoint(run.save);
    return report;
  });
  for (const auto& other : all) CHECK(other == all[0]);
  return all[0];
}

void check_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                const std::string& where) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    CHECK_MESSAGE(std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(a[i])),
                  where << ", number " << i << ": " << a[i] << " and " << b[i]);
}

}  // namespace

TEST_CASE("slices: losses, norms and loss scales near those of one process, in any mix") {
  const std::vector<double> one = train({.plan = "dp1"}), half = train({.plan = "dp1", .dtype = f16});
  CHECK(std::find(half.begin(), half.end(), -1) != half.end());  // one step overflowed
  for (const auto& [plan, accumulation] : std::vector<std::pair<std::string, int64_t>>{
           {"tp2", 4}, {"tp4", 4}, {"pp2+tp2", 4}, {"dp2+tp2+zero1", 2}, {"dp2+pp2+tp2+zero1", 2}, {"dp2+pp4", 2}}) {
    check_near(one, train({.plan = plan, .accumulation = accumulation}), 1e-5, plan);
    if (plan == "dp2+pp2+tp2+zero1")
      check_near(half, train({.plan = plan, .accumulation = accumulation, .dtype = f16}), 2e-2, plan + " in f16");
  }
}

TEST_CASE("slices: checkpoints of whole tensors, loaded by any plan") {
  const std::vector<double> one = train({.plan = "dp1"});
  const std::vector<double> rest(one.begin() + 9, one.end());
  struct Row {
    SlicedRun from, to;
  };
  for (Row row : std::vector<Row>{{{.plan = "dp2+pp2+tp2+zero1", .accumulation = 2}, {.plan = "dp1"}},
                                  {{.plan = "pp2"}, {.plan = "tp4"}},
                                  {{.plan = "tp2"}, {.plan = "dp2+pp2+tp2+zero1", .accumulation = 2}},
                                  {{.plan = "dp2+tp2+zero1", .accumulation = 2}, {.plan = "pp4"}}}) {
    const TempDir folder;
    row.from.steps = 3;
    row.from.save = row.to.load = folder.path;
    train(row.from);
    check_near(rest, train(row.to), 1e-5, row.from.plan + " to " + row.to.plan);
  }
}

TEST_CASE("slices: all ranks raise an error that names its location") {
  struct Row {
    std::function<std::optional<pipeline::Sample>(int rank, int64_t micro)> data;
    const char* expected;
  };
  const parallel::Plan plan = parallel::parse_plan("dp2+pp2+tp2+zero1");
  for (const Row& row :
       std::vector<Row>{{[](int, int64_t micro) { return micro == 3 ? std::nullopt : sample_of(0, micro); },
                         "the data ended before micro-batch 3 of step 0, expected 4 micro-batches"},
                        {[](int, int64_t micro) {
                           auto s = sample_of(0, micro);
                           if (micro == 1) s->inputs[0] = s->inputs[0].narrow(0, 0, 1);
                           return s;
                         },
                         "make all micro-batches the same shape, or set dynamic_shapes"},
                        {[](int rank, int64_t micro) -> std::optional<pipeline::Sample> {
                           if (rank == 6 && micro == 2) fail("no such file");
                           return sample_of(0, micro);
                         },
                         "no such file"}}) {
    std::vector<std::string> found(8);
    try {
      dist::spawn(
          8,
          [&](int rank) {
            try {
              const parallel::Mesh mesh(plan, dist::world());
              InitializeArgs args{
                  .optimizer = make_adamw, .config = config_of(1, 2), .mesh = &mesh, .log = [](const std::string&) {}};
              PipelineModule module = module_of(mesh, args);
              EngineBase e = engine::initialize(std::move(module), args);
              e.train_batch([&](int64_t micro) { return row.data(rank, micro); });
            } catch (const std::exception& error) {
              found[size_t(rank)] = error.what();
              throw;
            }
          },
          {.timeout = dist::Seconds(30), .heartbeat = dist::Seconds(0.5)});
    } catch (const std::exception&) {}
    for (const std::string& text : found) CHECK_MESSAGE(contains(text, row.expected), text);
  }
}

TEST_CASE("slices: a rank that dies is named by all others") {
  std::string text;
  try {
    dist::spawn(
        4,
        [](int rank) {
          const parallel::Mesh mesh(parallel::parse_plan("pp2+tp2+zero1"), dist::world());
          InitializeArgs args{
              .optimizer = make_adamw, .config = config_of(1, 4), .mesh = &mesh, .log = [](const std::string&) {}};
          PipelineModule module = module_of(mesh, args);
          EngineBase e = engine::initialize(std::move(module), args);
          e.train_batch([&](int64_t micro) {
            if (rank == 3 && micro == 2) raise(SIGKILL);
            return sample_of(0, micro);
          });
        },
        {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(30), .heartbeat = dist::Seconds(0.5)});
  } catch (const std::exception& e) { text = e.what(); }
  CHECK_MESSAGE(contains(text, "rank 3"), text);
}
