// TrainingArguments: transformers' names for a Trainer, with a file that leaves all to them.
#include "train/arguments.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "autograd/ops.h"
#include "nn/linear.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using train::TrainingArguments;

namespace {

struct Trained {
  std::vector<float> weights;
  std::vector<double> rates;
  int64_t steps = 0;
};

Trained train_with(const TrainingArguments& args, int ranks = 1) {
  Trained found;
  train::Options options = args.options();
  options.parallel.ranks = ranks;
  options.json = true;
  std::ostringstream nowhere;
  struct Back {
    std::streambuf* to;
    ~Back() { std::cout.rdbuf(to); }
  } const back{std::cout.rdbuf(nowhere.rdbuf())};
  train::start(options, "", [&](train::Job& job) {
    manual_seed(5);
    nn::Linear net({.in = 6, .out = 3});
    const Tensor x = randn({44, 6});
    train::TrainerOptions o = args.trainer_options();
    o.loss = [](const Variable& out, const Tensor& y) { return cross_entropy(out, y); };
    o.data = data::share(data::TensorDataset(x, argmax(x.narrow(1, 0, 3), 1)));
    o.on_step = [&](const train::StepInfo& info, data::Json&) {
      if (job.team().leads()) found.rates.push_back(info.lr);
    };
    train::Trainer trainer(job, net, o);
    trainer.fit();
    const auto model = trainer.whole_model();
    if (!job.team().leads()) return;
    found.steps = trainer.step();
    for (const auto& [name, tensor] : model)
      for (const float value : tensor.to_vector<float>()) found.weights.push_back(value);
  });
  return found;
}

const char* const automatic = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})";

}  // namespace

TEST_CASE("arguments: a file with auto everywhere trains as the arguments alone, for any number of ranks") {
  TrainingArguments args{.per_device_train_batch_size = 4,
                         .gradient_accumulation_steps = 4,
                         .learning_rate = 0.01,
                         .weight_decay = 0.1,
                         .adam_beta2 = 0.99,
                         .warmup_steps = 2};
  const Trained alone = train_with(args);
  CHECK(alone.steps == 9);  // 3 epochs of ceil(11 batches / 4)
  REQUIRE(alone.rates.size() == 9);
  for (int64_t t = 0; t < 9; ++t)
    CHECK(alone.rates[size_t(t)] == doctest::Approx(0.01 * (t < 2 ? double(t) / 2 : double(9 - t) / 7)));
  args.deepspeed = automatic;
  for (const int ranks : {1, 2, 4}) {
    args.gradient_accumulation_steps = 4 / ranks;
    const Trained other = train_with(args, ranks);
    CHECK(other.weights == alone.weights);
    CHECK(other.rates == alone.rates);
  }
}

TEST_CASE("arguments: a schedule of the file takes its numbers from them") {
  TrainingArguments args{.per_device_train_batch_size = 4, .learning_rate = 0.01, .warmup_steps = 0.25};
  std::string config = automatic;
  config.insert(1, R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr":
    "auto", "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}},)");
  args.deepspeed = config;
  const Trained found = train_with(args);
  REQUIRE(found.steps == 33);  // 9 of warmup
  CHECK(found.rates[4] == doctest::Approx(0.01 / 3));
  CHECK(found.rates[10] == doctest::Approx(0.01));
  CHECK(found.rates[22] == doctest::Approx(0.005));
}

TEST_CASE("arguments: all that a file contradicts is one error, and words that are none") {
  struct Row {
    TrainingArguments args;
    std::vector<std::string> expected;
  };
  for (const Row& row : std::vector<Row>{
           {{.deepspeed = R"({"train_batch_size": 32, "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params":
               {"lr": 1e-5, "eps": 0.00000001}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 5e-5,
               "warmup_num_steps": 10, "total_num_steps": 0}}})"},
            {"- ds train_batch_size=32 vs args train_batch_size (calculated)=8\n",
             "- ds gradient_clipping=0.5 vs args max_grad_norm=1",
             "- ds optimizer.params.lr=1e-05 vs args learning_rate=",
             "- ds scheduler.params.warmup_num_steps=10 vs args warmup_steps=1\n",
             "- ds scheduler.params.total_num_steps=0 vs args max_steps (calculated)=",
             "\nThe easiest method is to set these DeepSpeed config values to 'auto'."}},
           {{.lr_scheduler_type = "cosin"}, {"lr_scheduler_type: expected one of linear, constant, ", "got cosin"}},
           {{.save_strategy = "no"}, {"save_strategy: expected one of steps, epoch, got no"}},
           {{.save_steps = 0}, {"save_steps: expected 1 or more, got 0"}},
           {{.fp16 = true, .bf16 = true}, {"expected fp16 or bf16, got both"}},
       }) {
    const std::string said = message([&] { train_with(row.args); });
    for (const std::string& part : row.expected) CHECK_MESSAGE(contains(said, part), part, " in ", said);
    CHECK(!contains(said, "optimizer.params.eps"));
  }
}

TEST_CASE("arguments: the schedules of transformers") {
  struct Row {
    const char* type;
    double at_5, at_20, at_60, at_100;  // of 100 steps, 10 of warmup
  };
  for (const Row& row :
       std::vector<Row>{{"linear", 0.5, 80. / 90, 40. / 90, 0},
                        {"constant", 1, 1, 1, 1},
                        {"constant_with_warmup", 0.5, 1, 1, 1},
                        {"cosine", 0.5, 0.5 * (1 + std::cos(M_PI / 9)), 0.5 * (1 + std::cos(M_PI * 5 / 9)), 0},
                        {"polynomial", 0.5, 0.998 * 80 / 90 + 0.002, 0.998 * 40 / 90 + 0.002, 0.002}}) {
    for (const double warmup : {10., 0.1}) {
      const TrainingArguments args{.lr_scheduler_type = row.type, .warmup_steps = warmup};
      CHECK(args.lr_factor(5, 100) == doctest::Approx(row.at_5));
      CHECK(args.lr_factor(20, 100) == doctest::Approx(row.at_20));
      CHECK(args.lr_factor(60, 100) == doctest::Approx(row.at_60));
      CHECK(args.lr_factor(100, 100) == doctest::Approx(row.at_100));
    }
  }
}

TEST_CASE("arguments: where a run goes, and how often it is saved") {
  const TempDir out;
  const TrainingArguments args{.output_dir = out / "run",
                               .per_device_train_batch_size = 4,
                               .max_steps = 7,
                               .save_steps = 2,
                               .save_total_limit = 2};
  CHECK(train_with(args).steps == 7);
  int64_t kept = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out / "run/checkpoints")) kept += entry.is_directory();
  CHECK(kept == 2);
}
