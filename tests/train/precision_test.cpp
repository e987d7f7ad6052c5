// --precision: what bf16 does to losses, the casts of a step, the default on a card, checkpoints across precisions.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <set>
#include <sstream>

#include "autograd/ops.h"
#include "data/files.h"
#include "data/text.h"
#include "nn/container.h"
#include "nn/conv.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "nn/norm.h"
#include "nn/shape_layers.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tensor/dry_run.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t text_window = 32;

nn::GPT::Options sizes_of_gpt() { return {.vocab = 256, .context = text_window, .layers = 2, .width = 48, .heads = 4}; }
nn::GPT::Options sizes_of_llama() {
  nn::GPT::Options o = sizes_of_gpt();
  o.kv_heads = 2, o.norm = nn::Norm::rms, o.feed_forward = nn::FeedForward::swiglu, o.rope = nn::Rope{};
  o.tied = o.bias = false;
  return o;
}

/// The bytes of this repository's license, as tokens.
Tensor license_tokens() {
  const std::string all = data::read_file(std::string(golden_folder()) + "/../../LICENSE", INT64_MAX);
  std::vector<int64_t> ids;
  for (const char c : all) ids.push_back(static_cast<unsigned char>(c));
  return Tensor::from(ids, {int64_t(ids.size())});
}

train::Options precise(const std::string& precision, int64_t steps) {
  train::Options o;
  o.parallel.ranks = 1;
  o.batch = 4, o.steps = steps, o.precision = precision, o.json = true;
  return o;
}

/// What a run of a GPT prints, and the losses of its steps. look: called after each step.
struct PrecisionRun {
  std::string out;
  std::vector<double> losses;
  nn::State model;
};
PrecisionRun train_precisely(const nn::GPT::Options& sizes, const train::Options& o,
                             const std::function<void(train::Trainer&, const train::StepInfo&)>& look = {}) {
  PrecisionRun found;
  std::ostringstream out;
  auto* const before = std::cout.rdbuf(out.rdbuf());
  struct Back {
    std::streambuf* to;
    ~Back() { std::cout.rdbuf(to); }
  } const back{before};
  train::start(o, "", [&](train::Job& job) {
    manual_seed(3);
    nn::GPT model(sizes);
    const data::TokenBatches batches(license_tokens(), 5);
    std::optional<train::Trainer> trainer;
    trainer.emplace(job, model,
                    train::TrainerOptions{
                        .batches = [&](int64_t step, int64_t micro,
                                       int64_t n) { return batches.sample(step, micro, n, sizes.context); },
                        .optimizer =
                            [](nn::Module& m) {
                              return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{.lr = 5e-4});
                            },
                        // Without a warm-up, f32 is as far from itself when its last bits change.
                        .schedule =
                            [](optim::Optimizer& optimizer, int64_t steps) {
                              return std::make_unique<optim::LambdaLR>(optimizer, optim::warmup_cosine(20, steps, 0.1));
                            },
                        .config = data::Json::Object{{"gradient_clipping", 1}},
                        .on_step =
                            [&](const train::StepInfo& info, data::Json&) {
                              if (job.team().leads()) found.losses.push_back(info.loss);
                              if (look) look(*trainer, info);
                            }});
    trainer->fit();
    const nn::State whole = trainer->whole_model();
    if (job.team().leads()) found.model = whole;
  });
  found.out = out.str();
  return found;
}

double mean_of_last(const std::vector<double>& losses, int64_t count) {
  return std::accumulate(losses.end() - count, losses.end(), 0.) / double(count);
}

/// The table of tokens in a model's state.
Tensor table_of(const nn::State& state) {
  const auto found =
      std::find_if(state.begin(), state.end(), [](const auto& one) { return one.first == "tokens.weight"; });
  REQUIRE(found != state.end());
  return found->second;
}

bool is_short_or_f32(DType dtype) { return dtype == f32 || dtype == f16 || dtype == bf16; }

/// Kernels that convert floats: copies and pointwise operations between two floating dtypes.
int64_t casts_of(const std::vector<DryKernel>& kernels) {
  return std::count_if(kernels.begin(), kernels.end(), [](const DryKernel& k) {
    if (k.name != "copy" && k.name != "pointwise" && k.name != "add") return false;
    std::set<DType> floats;
    for (const DryKernel::Operand& o : k.operands)
      if (is_short_or_f32(o.dtype)) floats.insert(o.dtype);
    return floats.size() > 1;
  });
}

}  // namespace

TEST_CASE("precision: after 125 steps of bf16 the losses are within 0.2 % of f32's") {
  struct Row {
    std::string name;
    nn::GPT::Options sizes;
    int64_t accumulate;
  };
  for (const Row& row :
       {Row{"GPT", sizes_of_gpt(), 1}, Row{"GPT", sizes_of_gpt(), 4}, Row{"Llama", sizes_of_llama(), 1}}) {
    train::Options o = precise("f32", 125);
    o.batch = 8 / row.accumulate, o.parallel.accumulate = row.accumulate;
    const std::vector<double> wide = train_precisely(row.sizes, o).losses;
    o.precision = "bf16";
    const std::vector<double> low = train_precisely(row.sizes, o).losses;
    const double expected = mean_of_last(wide, 25), found = mean_of_last(low, 25);
    CHECK(expected < 0.75 * wide[0]);
    CHECK(low != wide);
    CHECK_MESSAGE(std::abs(found / expected - 1) < 0.002, row.name, ", ", row.accumulate, " micro-batches: ", found,
                  " instead of ", expected);
    MESSAGE(row.name, ", ", row.accumulate, " micro-batches: ", 100 * (found / expected - 1), " %");
  }
}

TEST_CASE("precision: a step in bf16 has at most ten casts") {
  const std::pair<std::string, nn::GPT::Options> models[] = {{"GPT", sizes_of_gpt()}, {"Llama", sizes_of_llama()}};
  for (const auto& [name, sizes] : models) {
    DryRun dry;
    for (const bool by_default : {true, false}) {
      train::Options o = precise(by_default ? "auto" : "bf16", 3);
      o.device = "cuda", o.no_graph = true, o.json = false;
      std::vector<int64_t> casts;
      const PrecisionRun run = train_precisely(sizes, o, [&](train::Trainer& trainer, const train::StepInfo&) {
        CHECK(trainer.engine().module().parameters()[0].dtype() == bf16);
        casts.push_back(casts_of(dry.take()));
      });
      CHECK_MESSAGE(casts.back() <= 10, name, ": ", casts.back());
      MESSAGE(name, ": ", casts.back(), " casts");
      const std::string line = "precision bf16 (default on this card; --precision f32 is the way back)\n";
      CHECK((run.out.rfind(line, 0) == 0) == by_default);
    }
    for (const char* precision : {"f32", "f16"}) {
      train::Options o = precise(precision, 3);
      o.device = "cuda", o.no_graph = true, o.json = false;
      int64_t casts = 0;
      const PrecisionRun run = train_precisely(sizes, o, [&](train::Trainer& trainer, const train::StepInfo&) {
        CHECK(trainer.engine().module().parameters()[0].dtype() == f32);
        casts = casts_of(dry.take());
      });
      CHECK(!contains(run.out, "precision"));
      if (o.precision == "f32") CHECK(casts == 0);
      else CHECK(casts > 40);  // Autocast has many, so the count sees them
    }
  }
}

TEST_CASE("precision: the default is f32 on the CPU, and what a configuration says everywhere") {
  struct Row {
    const char* device;
    std::vector<std::string> set;
    DType expected;
  };
  for (const Row& row : std::vector<Row>{{"cpu", {}, f32},
                                         {"cuda", {}, bf16},
                                         {"cuda", {"bf16.enabled=false"}, f32},
                                         {"cuda", {"bf16.enabled=true"}, bf16},
                                         {"cuda", {"fp16.enabled=true"}, f16},
                                         {"cuda", {"fp16.enabled=auto", "bf16.enabled=auto"}, bf16},
                                         {"cpu", {"fp16.enabled=auto", "bf16.enabled=auto"}, f32}}) {
    DryRun dry;
    train::Options o = precise("auto", 1);
    o.device = row.device, o.set = row.set;
    train::start(o, "", [&](train::Job& job) { CHECK(engine::parameter_dtype(job.config()) == row.expected); });
  }
}

TEST_CASE("precision: options and configuration may say the same, and nothing else") {
  const auto config = [](const std::string& precision, const std::vector<std::string>& set) {
    train::Options o = precise(precision, 1);
    o.given = {"precision"}, o.set = set;
    return message([&] { train::start(o, "", [](train::Job& job) { job.config(); }); });
  };
  CHECK(config("bf16", {"bf16.enabled=true"}) == "(no error)");
  CHECK(contains(config("bf16", {"bf16.enabled=false"}), "ds bf16.enabled=false vs args --precision bf16=true"));
  CHECK(config("fp8", {"bf16.enabled=false"}) == "(no error)");
  CHECK(contains(config("f32", {"bf16.enabled=true"}),
                 "--precision f32 contradicts the configuration, where bf16.enabled is true"));
  CHECK(contains(config("bf16", {"fp16.enabled=true"}),
                 "--precision bf16 contradicts the configuration, where fp16.enabled is true"));
}

TEST_CASE("precision: a run goes on in another precision, and its whole model is f32") {
  struct Row {
    const char *first, *then;
  };
  for (const Row& row : {Row{"f32", "bf16"}, Row{"bf16", "f32"}, Row{"bf16", "bf16"}}) {
    const TempDir out;
    train::Options o = precise(row.first, 6);
    o.out = out.str();
    const PrecisionRun first = train_precisely(sizes_of_gpt(), o);
    // Master weights and parameters of f32 have digits that bf16 lacks.
    for (const auto& [name, tensor] : first.model) CHECK(tensor.dtype() == f32);
    const Tensor table = table_of(first.model);
    CHECK(table.to(bf16).to(f32).to_vector<float>() != table.to_vector<float>());
    nn::GPT again(sizes_of_gpt());
    train::load_model(again, out.str(), false);
    CHECK(table_of(again.state()).to_vector<float>() == table.to_vector<float>());
    o.precision = row.then, o.steps = 6, o.resume = true;
    const PrecisionRun same = train_precisely(sizes_of_gpt(), o);  // is done already: the model that the checkpoint has
    CHECK(same.losses.empty());
    CHECK(table_of(same.model).to_vector<float>() == table.to_vector<float>());
    o.steps = 12;
    const PrecisionRun more = train_precisely(sizes_of_gpt(), o);
    CHECK(more.losses.size() == 6);
    CHECK(more.losses.back() < first.losses.front());
  }
}

TEST_CASE("precision: convolutions and batch norm train in bf16, with statistics and losses in f32") {
  struct Net : nn::Sequential {
    Net()
        : Sequential(nn::Conv2d({.in = 1, .out = 4, .kernel = 3}), nn::BatchNorm({.channels = 4}), nn::Flatten(),
                     nn::Linear({.in = 4 * 36, .out = 3})) {}
  };
  manual_seed(4);
  const Tensor x = randn({32, 1, 8, 8});
  const auto samples = data::share(data::TensorDataset(x, argmax(x.view({32, 64}).narrow(1, 0, 3), 1)));
  std::map<std::string, std::vector<double>> found;
  for (const char* precision : {"f32", "bf16"}) {
    train::Options o = precise(precision, 0);
    o.epochs = 2;
    std::ostringstream nowhere;
    auto* const before = std::cout.rdbuf(nowhere.rdbuf());
    train::start(o, "", [&](train::Job& job) {
      manual_seed(6);
      Net net;
      train::Trainer trainer(job, net,
                             {.loss =
                                  [](const Variable& scores, const Tensor& target) {
                                    const Variable one = cross_entropy(scores, target),
                                                   hot = mse_loss(scores, zeros(scores.shape()));
                                    return add(one, mul_scalar(hot, 0.01));
                                  },
                              .data = samples,
                              .evaluate = samples});
      trainer.fit();
      for (const nn::NamedBuffer& b : net.named_buffers())
        if (is_floating(b.tensor.dtype())) CHECK_MESSAGE(b.tensor.dtype() == f32, b.name);
      CHECK(net.parameters()[0].dtype() == (std::string(precision) == "f32" ? f32 : bf16));
      for (const auto& [name, value] : trainer.evaluate()) found[precision].push_back(value);
    });
    std::cout.rdbuf(before);
  }
  CHECK(found["bf16"] != found["f32"]);
  CHECK(found["bf16"][0] == doctest::Approx(found["f32"][0]).epsilon(0.05));
}
