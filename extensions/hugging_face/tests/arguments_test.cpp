// TrainingArguments: the names of Transformers' Trainer, and configuration files whose "auto" values they fill in.
#include "extensions/hugging_face/arguments.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>

#include "autograd/ops.h"
#include "data/safetensors.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/train_with.h"
#include "nn/linear.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/output.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using train::TrainingArguments;

namespace {

const char* const automatic = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})";

}  // namespace

TEST_CASE("arguments: a file with auto everywhere trains as the arguments alone, for any number of ranks") {
  TrainingArguments args{.per_device_train_batch_size = 4,
                         .gradient_accumulation_steps = 4,
                         // no weight decay, because an optimizer from the file would also decay biases
                         .learning_rate = 0.01,
                         .adam_beta2 = 0.99,
                         .warmup_steps = 2};
  const Trained single = train_with(args);
  CHECK(single.steps == 9);  // 3 epochs of ceil(11 batches / 4)
  REQUIRE(single.rates.size() == 9);
  for (int64_t t = 0; t < 9; ++t)
    CHECK(single.rates[size_t(t)] == doctest::Approx(0.01 * (t < 2 ? double(t) / 2 : double(9 - t) / 7)));
  args.deepspeed = automatic;
  for (const int ranks : {1, 2, 4}) {
    args.gradient_accumulation_steps = 4 / ranks;
    const Trained other = train_with(args, ranks);
    CHECK(other.weights == single.weights);
    CHECK(other.rates == single.rates);
  }
}

TEST_CASE("arguments: a schedule of the file takes its numbers from them") {
  TrainingArguments args{.per_device_train_batch_size = 4, .learning_rate = 0.01, .warmup_steps = 0.25};
  std::string config = automatic;
  config.insert(1, R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr":
    "auto", "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}},)");
  args.deepspeed = config;
  const Trained found = train_with(args);
  REQUIRE(found.steps == 33);  // 9 of them are warm-up
  CHECK(found.rates[4] == doctest::Approx(0.01 / 3));
  CHECK(found.rates[10] == doctest::Approx(0.01));
  CHECK(found.rates[22] == doctest::Approx(0.005));
}

TEST_CASE("arguments: all that a file contradicts is one error, and words that are none") {
  const auto best_of = [](double eval_steps, double save_steps) {
    return TrainingArguments{.output_dir = "/tmp/none",
                             .eval_strategy = "steps",
                             .eval_steps = eval_steps,
                             .save_steps = save_steps,
                             .load_best_model_at_end = true};
  };
  const std::pair<TrainingArguments, std::vector<std::string>> rows[] = {
      {{.deepspeed = R"({"train_batch_size": 32, "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params":
               {"lr": 1e-5, "eps": 0.00000001}}, "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 5e-5,
               "warmup_num_steps": 10, "total_num_steps": 0}}})"},
       {"- ds train_batch_size=32 vs args train_batch_size (calculated)=8\n",
        "- ds gradient_clipping=0.5 vs args max_grad_norm=1", "- ds optimizer.params.lr=1e-05 vs args learning_rate=",
        "- ds scheduler.params.warmup_num_steps=10 vs args warmup_steps=1\n",
        "- ds scheduler.params.total_num_steps=0 vs args max_steps (calculated)=",
        "\nThe easiest method is to set these DeepSpeed config values to 'auto'."}},
      {{.lr_scheduler_type = "cosin"}, {"lr_scheduler_type: expected one of linear, constant, ", "got cosin"}},
      {{.save_strategy = "no"}, {"save_strategy: expected one of steps, epoch, got no"}},
      {{.load_best_model_at_end = true}, {"expected an output_dir, in which the best model is kept"}},
      {{.output_dir = "/tmp/none", .load_best_model_at_end = true}, {"got no and steps"}},
      {best_of(3, 10), {"expected save_steps to be a multiple of eval_steps, got 10 and 3"}},
      {best_of(0.25, 1), {"expected save_steps to be a multiple of eval_steps, got 1 and 0.25"}},
      {{.logging_steps = 0}, {"logging_steps: expected a whole number from 1 up, or a part of all steps", "got 0"}},
      {{.save_steps = 2.5}, {"save_steps: expected a whole number from 1 up, or a part of all steps", "got 2.5"}},
      {{.eval_steps = NAN}, {"eval_steps: expected a whole number"}},
      {{.num_train_epochs = 0}, {"num_train_epochs: expected a number above 0, got 0"}},

      {{.resume_from_checkpoint = true}, {"resume_from_checkpoint needs output_dir"}},
      {{.bf16 = true, .deepspeed = R"({"fp16": {"enabled": true}})"}, {"bf16 contradicts the configuration"}},
      {{.fp16 = true, .bf16 = true}, {"expected fp16 or bf16, got both"}},
  };
  for (const auto& [args, expected] : rows) {
    const std::string said = message([&] { train_with(args); });
    for (const std::string& part : expected) CHECK_MESSAGE(contains(said, part), part, " in ", said);
    CHECK(!contains(said, "optimizer.params.eps"));
  }
}

TEST_CASE("arguments: the schedules of transformers") {
  struct Row {
    const char* type;
    double rates[4];
  };
  const int64_t steps[] = {5, 20, 60, 100};  // of 100 steps, of which 10 are warm-up
  for (const Row& row :
       std::vector<Row>{{"linear", 0.5, 80. / 90, 40. / 90, 0},
                        {"constant", 1, 1, 1, 1},
                        {"constant_with_warmup", 0.5, 1, 1, 1},
                        {"cosine", 0.5, 0.5 * (1 + std::cos(M_PI / 9)), 0.5 * (1 + std::cos(M_PI * 5 / 9)), 0},
                        {"polynomial", 0.5, 0.998 * 80 / 90 + 0.002, 0.998 * 40 / 90 + 0.002, 0.002}}) {
    for (const double warmup : {10., 0.1}) {
      const TrainingArguments args{.lr_scheduler_type = row.type, .warmup_steps = warmup};
      for (int i = 0; i < 4; ++i) CHECK(args.lr_factor(steps[i], 100) == doctest::Approx(row.rates[i]));
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
  std::filesystem::remove(out / "run/lock");
  CHECK(out.list("run") == ".run checkpoint-6 checkpoint-7 latest metrics.jsonl run.json trainer_state.json");
}

TEST_CASE("arguments: parts of all steps, and of an epoch") {
  const TempDir out;
  const TrainingArguments args{.output_dir = out / "run",
                               .per_device_train_batch_size = 4,
                               // 1.5 epochs of 11 steps are 17 steps; fractions of them are rounded up
                               .num_train_epochs = 1.5,
                               .eval_strategy = "steps",
                               .eval_steps = 0.25,
                               .save_steps = 0.5,
                               .logging_steps = 0.1,
                               .load_best_model_at_end = true};
  const Trained found = train_with(args, 1, true);
  CHECK(found.steps == 17);
  std::string losses, evaluations;
  for (const data::Json& entry : found.log.as_array()) {
    const std::string step = str(" ", entry.at("step").as_int());
    if (entry.find("loss")) losses += step;
    if (entry.find("eval_loss")) evaluations += step;
  }
  CHECK(losses == " 2 4 6 8 10 12 14 16");
  CHECK(evaluations.starts_with(" 5 10 15"));
  CHECK(std::filesystem::exists(out / "run/checkpoint-9"));
  const data::Json state = data::read_json(out / "run/trainer_state.json");
  for (const auto& [key, wanted] :
       std::map<std::string, int>{{"logging_steps", 2}, {"eval_steps", 5}, {"save_steps", 9}, {"num_train_epochs", 2}})
    CHECK(state.at(key) == data::Json(wanted));
  CHECK(train_with({.per_device_train_batch_size = 4, .num_train_epochs = 2.0}).steps == 22);
  CHECK(train_with({.per_device_train_batch_size = 4, .num_train_epochs = 0.1}).steps == 2);
}

TEST_CASE("arguments: notes and errors have their names, and a run that is done says so") {
  const TempDir out;
  TrainingArguments args{.output_dir = out / "run", .per_device_train_batch_size = 4, .max_steps = 2};
  const auto notes = [&] {
    const HeldOutput text(std::cerr);
    const std::string said = message([&] {
      const Trained found = train_with(args);  // outside of CHECK, which would swallow its exception
      CHECK(found.steps == 2);
    });
    CHECK(!contains(text.text() + said, "--"));
    return said == "(no error)" ? text.text() : said;
  };
  args.resume_from_checkpoint = true;
  CHECK(contains(notes(), "holds no checkpoint, so resume_from_checkpoint begins at step 0"));
  CHECK(contains(notes(), "run: the run is done, this is step 2 of 2"));
  args.resume_from_checkpoint = false;
  CHECK(contains(notes(), "continue it with resume_from_checkpoint, or choose another output_dir"));
  args.resume_from_checkpoint = out / "none";
  CHECK(contains(notes(), "none: resume_from_checkpoint found no checkpoint"));
}

TEST_CASE("arguments: the curve of 20 steps of Transformers' Trainer, with the loss by tokens, for any ranks") {
  const std::string folder = std::string(golden_folder()) + "/models/";
  const auto golden = data::SafeTensors::open(folder + "trainer_llama.safetensors");
  const Tensor ids = golden.tensor("ids"), labels = golden.tensor("labels");  // samples have 11 to 4 labels
  const int64_t last = ids.size(1) - 1;
  const data::TensorDataset samples(ids.narrow(1, 0, last).contiguous(), labels.narrow(1, 1, last).contiguous());
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const TrainingArguments args{.per_device_train_batch_size = 2,
                                 .per_device_eval_batch_size = 4,
                                 .gradient_accumulation_steps = 4 / ranks,
                                 .learning_rate = 1e-3,
                                 .weight_decay = 0.1,
                                 .max_grad_norm = 0.5,
                                 .max_steps = 20,
                                 .lr_scheduler_type = "cosine",
                                 .warmup_steps = 3,
                                 .eval_strategy = "steps",
                                 .eval_steps = 5,
                                 .logging_steps = 1};
    start_with(args, ranks, [&](train::TrainJob& job) {
      const auto model = nn::from_pretrained(folder + "llama_main", {.dtype = f32});
      train::TrainerOptions o = args.trainer_options();
      o.data = o.evaluate = data::share(samples);
      const auto loss = [](const Variable& out, const Tensor& y) {
        return cross_entropy(out.reshape({-1, out.shape()[2]}), Variable(y.reshape({-1})));
      };
      // Transformers' eval_loss is this mean over batches; ours is the mean over tokens
      o.metrics = {{"mean_of_batches", loss}};
      train::Trainer trainer(job, *model, o);
      trainer.fit();
      const train::Predictions p = trainer.predict(samples);
      if (!job.team().leads()) return;
      CHECK(p.metrics[0].second == doctest::Approx(loss(p.predictions, p.label_ids).item()).epsilon(1e-5));
      std::map<std::string, std::vector<double>> curves;
      for (const data::Json& entry : trainer.log_history())
        for (const char* name : {"loss", "grad_norm", "learning_rate", "eval_mean_of_batches"})
          if (const data::Json* value = entry.find(name))
            curves[*name == 'e' ? "eval_loss" : name].push_back(value->as_number());
      for (const auto& [name, curve] : curves) {
        CAPTURE(name);
        const auto theirs = golden.tensor(name).to_vector<double>();
        REQUIRE(curve.size() == theirs.size());
        for (size_t i = 0; i < curve.size(); ++i)
          CHECK(std::abs(curve[i] - theirs[i]) <= 1e-4 * (name == "grad_norm" ? std::max(1., theirs[i]) : 1));
      }
      CHECK(curves.size() == 4);
      CHECK(p.predictions.shape() == Shape{8, last, 211});
      CHECK(equal(p.label_ids, labels.narrow(1, 1, last).contiguous()));
      CHECK(allclose(p.predictions.narrow(0, 0, 2).contiguous(),
                     golden.tensor("predictions").narrow(1, 0, last).contiguous(), 1e-3, 1e-3));
    });
  }
}

TEST_CASE("arguments: checkpoint-N has a trainer_state.json, and a run that goes on from it ends with the same bits") {
  const TempDir out;
  TrainingArguments args{.output_dir = out / "whole",
                         .per_device_train_batch_size = 4,
                         .learning_rate = 0.05,
                         .max_steps = 12,
                         .eval_strategy = "steps",
                         .eval_steps = 2,
                         .save_steps = 4,
                         .logging_steps = 3,
                         .load_best_model_at_end = true};
  const Trained full = train_with(args, 1, true);
  const data::Json state = data::read_json(out / "whole/checkpoint-4/trainer_state.json");
  std::string keys;
  for (const auto& [key, value] : state.as_object()) keys += key + " ";
  CHECK(keys ==
        "best_global_step best_metric best_model_checkpoint epoch eval_steps global_step is_hyper_param_search "
        "is_local_process_zero is_world_process_zero log_history logging_steps max_steps num_input_tokens_seen "
        "num_train_epochs save_steps stateful_callbacks total_flos train_batch_size trial_name trial_params ");
  CHECK(state.at("log_history").as_array().size() == 3);  // a loss and two evaluations
  CHECK(state.at("log_history").as_array()[1].at("step").as_int() == 3);
  CHECK(full.log.as_array().size() == 4 + 6 + 1);
  // predict() uses the best model, which here is the last one.
  double best = INFINITY;
  for (const data::Json& entry : full.log.as_array())
    if (const data::Json* loss = entry.find("eval_loss")) best = std::min(best, loss->as_number());
  REQUIRE(full.predicted.metrics.size() == 2);
  CHECK(full.predicted.metrics[0] == std::pair<std::string, double>("test_loss", best));
  CHECK(full.predicted.metrics[1].first == "test_accuracy");
  CHECK(full.predicted.metrics[1].second > 0.5);
  const data::Json ended = data::read_json(out / "whole/trainer_state.json");
  CHECK(ended.at("best_metric").as_number() == best);
  CHECK(ended.at("best_model_checkpoint").as_string() == out / "whole/best/checkpoint-12");
  CHECK(std::filesystem::exists(out / "whole/best/checkpoint-12"));
  CHECK(!std::filesystem::exists(out / "whole/best/checkpoint-2"));

  // Resumes from a given folder, or from the last checkpoint in output_dir.
  const auto losses = [](const Trained& one) {
    std::vector<double> all;
    for (const data::Json& entry : one.log.as_array())
      for (const char* key : {"loss", "eval_loss", "train_loss"})
        if (const data::Json* found = entry.find(key)) all.push_back(found->as_number());
    return all;
  };
  TrainingArguments other = args;
  for (const char* from : {"whole/checkpoint-4", "whole/checkpoint-8"}) {
    other.output_dir = out / std::string("from-") + (from + 6);
    other.resume_from_checkpoint = out / from;
    const Trained rest = train_with(other, 1, true);
    CHECK(rest.steps == 12);
    CHECK(rest.weights == full.weights);
    CHECK(losses(rest) == losses(full));
  }
  other = args;
  other.resume_from_checkpoint = true;
  CHECK_ERROR(train_with(args, 1, true), "already holds a run");
  CHECK(train_with(other, 1, true).steps == 12);
  other.output_dir = out / "none";
  other.resume_from_checkpoint = out / "nowhere";
  CHECK_ERROR(train_with(other, 1, true), "found no checkpoint");
}
