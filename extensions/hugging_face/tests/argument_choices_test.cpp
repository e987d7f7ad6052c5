// What TrainingArguments chooses by Hugging Face's names: optimizers, schedules, the order of samples, early stopping.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>

#include "data/files.h"
#include "extensions/hugging_face/arguments.h"
#include "extensions/hugging_face/padding.h"
#include "extensions/hugging_face/tests/train_with.h"
#include "nn/container.h"
#include "nn/init.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using data::Json;
using train::TrainingArguments;

namespace {

Json kwargs(const std::string& text) { return data::parse_json(text, "kwargs"); }

/// An embedding and a Linear: a table, a matrix and a vector.
struct Small : nn::Layer<Small> {
  nn::Embedding table{{.num = 10, .dim = 4}};
  nn::Linear linear{{.in = 4, .out = 3}};
  Variable forward(const Tensor& ids) { return linear(table(ids)); }
  void fields(nn::Fields& f) override { f("table", table)("linear", linear); }
};

/// Gives fit() evaluations with these values of the metric "score", the last one again and again.
std::function<void(train::TrainerOptions&)> scores(const std::vector<double>& values) {
  return [values, i = std::make_shared<size_t>()](train::TrainerOptions& o) {
    o.compute_metrics = [values, i](const train::Predictions&) {
      return std::vector<std::pair<std::string, double>>{{"score", values[std::min((*i)++, values.size() - 1)]}};
    };
  };
}

TrainingArguments evaluated_each_step(int64_t steps) {
  return {.per_device_train_batch_size = 4,
          .learning_rate = 0.01,
          .max_steps = steps,
          .lr_scheduler_type = "constant",
          .eval_strategy = "steps",
          .eval_steps = 1};
}

}  // namespace

TEST_CASE("argument choices: Hugging Face's names of optimizers") {
  const std::vector<std::pair<std::string, std::string>> rows = {{"adamw_torch", "AdamW"},
                                                                 {"adamw_torch_fused", "AdamW"},
                                                                 {"adamw_apex_fused", "AdamW"},
                                                                 {"paged_adamw_32bit", "AdamW"},
                                                                 {"adamw_8bit", "AdamW8bit"},
                                                                 {"adamw_bnb_8bit", "AdamW8bit"},
                                                                 {"paged_adamw_8bit", "AdamW8bit"},
                                                                 {"lion_32bit", "Lion"},
                                                                 {"paged_lion_32bit", "Lion"},
                                                                 {"lion_8bit", "Lion8bit"},
                                                                 {"paged_lion_8bit", "Lion8bit"},
                                                                 {"adafactor", "Adafactor"},
                                                                 {"sgd", "SGD"},
                                                                 {"adagrad", "Adagrad"},
                                                                 {"rmsprop", "RMSprop"}};
  for (const auto& [name, kind] : rows) {
    CAPTURE(name);
    Small model;
    const TrainingArguments args{
        .learning_rate = 0.25, .weight_decay = 0.5, .adam_beta1 = 0.75, .adam_epsilon = 0.125, .optim = name};
    const auto made = args.trainer_options().optimizer(model);
    CHECK(made->name() == kind);
    const bool in_8_bits = kind.ends_with("8bit");
    REQUIRE(made->group_count() == (in_8_bits ? 3 : 2));
    CHECK(made->parameters(0).size() == (in_8_bits ? 1 : 2));  // matrices; an 8-bit one has the table in a third group
    CHECK(made->parameters(1).size() == 1);                    // the bias
    for (int g = 0; g < made->group_count(); ++g) {
      CHECK(made->lr(g) == 0.25);
      CHECK(made->get(g, "weight_decay") == (g == 1 ? 0 : 0.5));
      const bool adam = kind.starts_with("AdamW");
      if (adam || kind.starts_with("Lion")) CHECK(made->get(g, "beta1") == 0.75);
      if (adam) CHECK(made->get(g, "eps") == 0.125);
    }
    CHECK(made->parameters(in_8_bits ? 2 : 0)[0].size(0) == 10);
  }
  CHECK_ERROR(TrainingArguments{.optim = "adamw"}.options(), "optim: expected one of adamw_torch, ");
}

TEST_CASE("argument choices: Hugging Face's Adafactor, without scaled parameters and relative steps") {
  nn::Linear model({.in = 3, .out = 2, .bias = false});
  const double lr = 0.125, decay = 0.5;
  const auto rule =
      TrainingArguments{.learning_rate = lr, .weight_decay = decay, .optim = "adafactor"}.trainer_options().optimizer(
          model);
  std::vector<double> p;
  for (const float value : model.weight.tensor().to_vector<float>()) p.push_back(value);
  double rows[2] = {}, columns[3] = {};
  for (int t = 1; t <= 3; ++t) {
    std::vector<float> grad;
    for (int i = 0; i < 6; ++i) grad.push_back(float(std::sin(i + 6 * t)) * 0.01f);
    model.weight.grad() = Tensor::from(grad, {2, 3});
    rule->step();
    // transformers.Adafactor.step(), in f64
    const double beta = 1 - std::pow(double(t), -0.8);
    for (int r = 0; r < 2; ++r) {
      double mean = 0;
      for (int c = 0; c < 3; ++c) mean += (double(grad[size_t(3 * r + c)]) * grad[size_t(3 * r + c)] + 1e-30) / 3;
      rows[r] = beta * rows[r] + (1 - beta) * mean;
    }
    for (int c = 0; c < 3; ++c) {
      double mean = 0;
      for (int r = 0; r < 2; ++r) mean += (double(grad[size_t(3 * r + c)]) * grad[size_t(3 * r + c)] + 1e-30) / 2;
      columns[c] = beta * columns[c] + (1 - beta) * mean;
    }
    double update[6], squares = 0;
    for (int i = 0; i < 6; ++i) {
      update[i] = grad[size_t(i)] / std::sqrt(rows[i / 3] / ((rows[0] + rows[1]) / 2)) / std::sqrt(columns[i % 3]);
      squares += update[i] * update[i];
    }
    const double clip = std::max(1.0, std::sqrt(squares / 6));
    for (int i = 0; i < 6; ++i) p[size_t(i)] += -decay * lr * p[size_t(i)] - lr * update[i] / clip;
    const auto found = model.weight.tensor().to_vector<float>();
    for (size_t i = 0; i < 6; ++i) CHECK(found[i] == doctest::Approx(p[i]).epsilon(1e-5));
  }
}

TEST_CASE("argument choices: schedules with options") {
  // Steps 5, 20, 60, 99 of 100, of which 10 are warm-up; formulas of transformers/optimization.py.
  const auto cosine = [](double x) { return 0.5 * (1 + std::cos(M_PI * x)); };
  struct Row {
    const char *type, *options;
    double rates[4];
  };
  for (const Row& row : std::vector<Row>{
           {"cosine", R"({"num_cycles": 1})", {0.5, cosine(2. / 9), cosine(10. / 9), cosine(2 * 89. / 90)}},
           {"cosine_with_restarts", "{}", {0.5, cosine(1. / 9), cosine(5. / 9), cosine(89. / 90)}},
           {"cosine_with_restarts", R"({"num_cycles": 3})", {0.5, cosine(1. / 3), cosine(2. / 3), cosine(87. / 90)}},
           {"cosine_with_min_lr",
            R"({"min_lr_rate": 0.25})",
            {0.5, 0.75 * cosine(1. / 9) + 0.25, 0.75 * cosine(5. / 9) + 0.25, 0.75 * cosine(89. / 90) + 0.25}},
           {"cosine_with_min_lr",
            R"({"min_lr": 1e-5})",
            {0.5, 0.8 * cosine(1. / 9) + 0.2, 0.8 * cosine(5. / 9) + 0.2, 0.8 * cosine(89. / 90) + 0.2}},
           {"polynomial",
            R"({"lr_end": 5e-6, "power": 2})",
            {0.5, 0.9 * 64 / 81 + 0.1, 0.9 * 16 / 81 + 0.1, 0.9 / 8100 + 0.1}},
           {"inverse_sqrt", "{}", {0.5, std::sqrt(0.5), std::sqrt(1. / 6), std::sqrt(10. / 99)}},
           {"inverse_sqrt", R"({"timescale": 30})", {0.5, std::sqrt(3. / 4), std::sqrt(3. / 8), std::sqrt(30. / 119)}},
           {"warmup_stable_decay", R"({"num_decay_steps": 80})", {0.5, 1, 0.5, cosine(79. / 80)}},
           {"warmup_stable_decay", R"({"num_decay_steps": 50, "decay_type": "linear"})", {0.5, 1, 0.8, 0.02}},
           {"warmup_stable_decay",
            R"({"num_decay_steps": 50, "decay_type": "1-sqrt", "min_lr_ratio": 0.5})",
            {0.75, 1, 0.5 * (1 - std::sqrt(0.2)) + 0.5, 0.5 * (1 - std::sqrt(0.98)) + 0.5}},
           {"warmup_stable_decay",
            R"({"num_decay_steps": 40, "num_stable_steps": 20, "warmup_type": "cosine", "min_lr_ratio": 0.1})",
            {0.55, 1, 0.9 * cosine(0.75) + 0.1, 0.1}},
           {"warmup_stable_decay",
            R"({"num_decay_steps": 10, "warmup_type": "1-sqrt"})",
            {1 - std::sqrt(0.5), 1, 1, cosine(0.9)}},
           {"reduce_lr_on_plateau", "{}", {1, 1, 1, 1}}}) {
    CAPTURE(row.type);
    CAPTURE(row.options);
    const TrainingArguments args{
        .lr_scheduler_type = row.type, .lr_scheduler_kwargs = kwargs(row.options), .warmup_steps = 10};
    const int64_t steps[] = {5, 20, 60, 99};
    for (int i = 0; i < 4; ++i) CHECK(args.lr_factor(steps[i], 100) == doctest::Approx(row.rates[i]).epsilon(1e-9));
  }
  const TrainingArguments late{.lr_scheduler_type = "inverse_sqrt"};  // without warm-up the timescale is 10000
  CHECK(late.lr_factor(30000, 50000) == doctest::Approx(0.5));
}

TEST_CASE("argument choices: what is wrong") {
  const auto schedule = [](const char* type, const char* options) {
    return TrainingArguments{
        .lr_scheduler_type = type, .lr_scheduler_kwargs = kwargs(options), .eval_strategy = "steps"};
  };
  const std::pair<TrainingArguments, std::vector<std::string>> rows[] = {
      {schedule("linear", R"({"power": 2})"), {"lr_scheduler_kwargs: expected none for linear, got power"}},
      {schedule("polynomial", R"({"pow": 2})"), {"expected those of polynomial, lr_end", "got pow"}},
      {schedule("polynomial", "[]"), {"lr_scheduler_kwargs: expected an object, got []"}},
      {schedule("polynomial", R"({"lr_end": 1})"), {"lr_end: expected less than learning_rate", "got 1"}},
      {schedule("cosine", R"({"num_cycles": "two"})"), {"lr_scheduler_kwargs num_cycles"}},
      {schedule("cosine_with_min_lr", "{}"), {"min_lr or min_lr_rate", "got neither"}},
      {schedule("cosine_with_min_lr", R"({"min_lr": 0, "min_lr_rate": 0})"), {"got both"}},
      {schedule("warmup_stable_decay", "{}"), {"expected num_decay_steps", "got none"}},
      {schedule("warmup_stable_decay", R"({"num_decay_steps": 5, "decay_type": "sqrt"})"),
       {"decay_type: expected one of linear, cosine", "got sqrt"}},
      {schedule("warmup_stable_decay", R"({"num_decay_steps": 50})"), {"to fit into the run's 33 steps, got 50"}},
      {schedule("reduce_lr_on_plateau", R"({"factor": 1})"), {"factor: expected a number below 1, got 1"}},
      {{.lr_scheduler_type = "reduce_lr_on_plateau"}, {"reduce_lr_on_plateau: expected an eval_strategy, got no"}},
      {{.label_smoothing_factor = 1}, {"label_smoothing_factor: expected a number from 0 to below 1, got 1"}},
      {{.early_stopping_patience = 2}, {"early_stopping_patience: expected an eval_strategy, got no"}},
      {{.eval_strategy = "steps", .early_stopping_patience = 2}, {"expected a metric_for_best_model", "got neither"}},
      {{.early_stopping_threshold = 1}, {"expected an early_stopping_patience above 0"}},
      {{.report_to = {"wandb"}}, {"report_to: expected one of none, all, tensorboard, got wandb"}},
      {{.report_to = {"none", "all"}}, {"expected none alone"}},
      {{.report_to = {"all"}}, {"expected an output_dir or a logging_dir"}},
      {{.gradient_checkpointing = true}, {"expected a module with blocks"}},
  };
  for (const auto& [given, expected] : rows) {
    TrainingArguments args = given;
    args.per_device_train_batch_size = 4;
    const std::string said = message([&] { train_with(args); });
    for (const std::string& part : expected) CHECK_MESSAGE(contains(said, part), part, " in ", said);
  }
}

TEST_CASE("argument choices: label smoothing is PyTorch's, in training and evaluation, whatever is ignored") {
  manual_seed(3);
  const Tensor out = randn({2, 4, 5});
  const Tensor target = Tensor::from<int64_t>({0, 1, 4, -100, -100, 2, 3, 3}, {2, 4});
  const auto loss = TrainingArguments{.label_smoothing_factor = 0.2}.trainer_options().loss;
  const std::vector<float> scores = out.to_vector<float>();
  const std::vector<int64_t> ids = target.to_vector<int64_t>();
  double sum = 0;  // LabelSmoother: (1 - e) nll + e mean over classes of -log p, over targets that are not ignored
  for (size_t i = 0; i < 8; ++i) {
    if (ids[i] < 0) continue;
    double total = 0, all = 0;
    for (size_t c = 0; c < 5; ++c) total += std::exp(double(scores[5 * i + c]));
    for (size_t c = 0; c < 5; ++c) all += std::log(total) - double(scores[5 * i + c]);
    sum += 0.8 * (std::log(total) - double(scores[5 * i + size_t(ids[i])])) + 0.2 * all / 5;
  }
  CHECK(loss(out, {target}).item() == doctest::Approx(sum / 6).epsilon(1e-5));
  CHECK_ERROR(loss(out, {ones({2, 4})}), "label_smoothing_factor: expected outputs (..., classes) and targets i64");
  TrainingArguments args = evaluated_each_step(3);
  const Trained plain = train_with(args, 1, true);
  args.label_smoothing_factor = 0.2;
  const Trained smooth = train_with(args, 1, true);
  CHECK(smooth.weights != plain.weights);
  CHECK(train_with(args, 2, true).steps == 3);
}

TEST_CASE("argument choices: batches of similar length, as LengthGroupedSampler makes them") {
  for (const auto& [samples, batch] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 2}, {64, 4}, {1000, 4}}) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < samples; ++i) lengths.push_back(1 + (i * 7919) % 97);
    const auto order = train::length_grouped(lengths, batch, 5, 0);
    std::vector<int64_t> sorted = order, all(static_cast<size_t>(samples));
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    CHECK(sorted == all);
    CHECK(lengths[size_t(order[0])] == *std::max_element(lengths.begin(), lengths.end()));
    const int64_t group = batch * std::clamp<int64_t>(samples / (4 * batch), 1, 50);
    int64_t rises = 0;  // only between groups, and where the longest sample was exchanged
    for (int64_t i = 2; i < samples; ++i)
      rises +=
          i % group != 0 && i % group != 1 && lengths[size_t(order[size_t(i)])] > lengths[size_t(order[size_t(i - 1)])];
    CHECK(rises == 0);
    CHECK(order == train::length_grouped(lengths, batch, 5, 0));
    if (samples > 7) CHECK(order != train::length_grouped(lengths, batch, 5, 1));
  }
  CHECK(train::length_grouped({}, 4, 0, 0).empty());
}

TEST_CASE("argument choices: a run by groups of lengths has the same bits for any number of ranks") {
  TrainingArguments args{.per_device_train_batch_size = 2, .learning_rate = 0.01, .max_steps = 6};
  const auto varied = [](train::TrainerOptions& o) {
    o.loss = [](const Variable& out, const Tensor& target) { return mse_loss(mean(out, {1, 2}), target); };
    struct Ragged : data::Dataset<data::Example> {
      int64_t size() const override { return 24; }
      data::Example get(int64_t i) const override {
        return {full({1 + i % 5, 6}, double(i) / 24, {.device = cpu}), full({}, double(i % 3), {.device = cpu})};
      }
    };
    o.data = data::share(data::PaddedDataset(data::share(Ragged())));
  };
  args.gradient_accumulation_steps = 4;
  const Trained shuffled = train_with(args, 1, false, varied);
  args.group_by_length = true;
  const Trained grouped = train_with(args, 1, false, varied);
  CHECK(grouped.weights != shuffled.weights);
  for (const int ranks : {2, 4}) {
    args.gradient_accumulation_steps = 4 / ranks;
    CHECK(train_with(args, ranks, false, varied).weights == grouped.weights);
  }
  CHECK_ERROR(train_with(args, 1, false,
                         [](train::TrainerOptions& o) {
                           o.data = data::share(data::TensorDataset(ones({24}), zeros({24}, {.dtype = i64})));
                         }),
              "group_by_length: expected inputs of at least one dim, got a scalar in sample 0");
}

TEST_CASE("argument choices: early stopping counts evaluations without enough improvement") {
  const std::vector<double> rising = {1, 2, 2.05, 2.1, 2.05, 3};
  struct Row {
    int64_t patience;
    double threshold;
    int64_t steps;
  };
  for (const auto& [patience, threshold, steps] :
       std::vector<Row>{{0, 0, 8}, {1, 0, 5}, {2, 0, 8}, {1, 0.1, 3}, {2, 0.1, 4}, {3, 0.1, 5}, {4, 0.1, 8}}) {
    CAPTURE(patience);
    CAPTURE(threshold);
    TrainingArguments args = evaluated_each_step(8);
    args.metric_for_best_model = "score";
    args.early_stopping_patience = patience, args.early_stopping_threshold = threshold;
    CHECK(train_with(args, 1, true, scores(rising)).steps == steps);
  }
}

TEST_CASE("argument choices: reduce_lr_on_plateau follows the evaluations, also after a resume") {
  const TempDir out;
  TrainingArguments args = evaluated_each_step(6);
  args.lr_scheduler_type = "reduce_lr_on_plateau";
  args.lr_scheduler_kwargs = kwargs(R"({"patience": 0, "factor": 0.5})");
  args.metric_for_best_model = "score";  // the greater, the better
  const std::vector<double> values = {1, 1, 2, 2, 2, 3};
  const Trained full = train_with(args, 1, true, scores(values));
  // The rate of step t + 1 follows the evaluation after step t.
  const std::vector<double> wanted = {0.01, 0.01, 0.005, 0.005, 0.0025, 0.00125};
  REQUIRE(full.rates.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(full.rates[i] == doctest::Approx(wanted[i]));
  args.eval_steps = 2;  // evaluations after steps 2, 4 and 6
  const Trained rare = train_with(args, 1, true, scores({1, 1, 1}));
  CHECK(rare.rates == std::vector<double>{0.01, 0.01, 0.01, 0.01, 0.005, 0.005});
  const auto constant = [](train::TrainerOptions& o) {
    o.compute_metrics = [](const train::Predictions&) {
      return std::vector<std::pair<std::string, double>>{{"score", 1.0}};
    };
  };
  for (const int ranks : {1, 2}) {
    args.gradient_accumulation_steps = 2 / ranks;
    args.output_dir = out / str("run", ranks), args.save_steps = 4, args.max_steps = 4;
    args.resume_from_checkpoint = false;
    train_with(args, ranks, true, constant);
    args.max_steps = 6, args.resume_from_checkpoint = true;
    CHECK(train_with(args, ranks, true, constant).rates == std::vector<double>{0.005, 0.005});
  }
  args = evaluated_each_step(2);
  args.lr_scheduler_type = "reduce_lr_on_plateau";
  CHECK(train_with(args, 1, true).steps == 2);  // by default it follows eval_loss
  args.metric_for_best_model = "f1";
  CHECK_ERROR(train_with(args, 1, true), "there is no metric eval_f1; choose one of those evaluated: eval_loss");
}

TEST_CASE("argument choices: a folder is overwritten, and reported to TensorBoard") {
  const TempDir out;
  TrainingArguments args = evaluated_each_step(4);
  args.output_dir = out / "run", args.save_steps = 1, args.logging_steps = 1, args.load_best_model_at_end = true;
  args.report_to = {"tensorboard"};
  train_with(args, 2, true);
  CHECK(std::filesystem::exists(out / "run/checkpoint-4"));
  std::string events;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out / "run/runs"))
    events += data::read_file(entry.path().string(), 1 << 20), ++files;
  CHECK(files == 1);  // only rank 0 writes
  for (const char* tag : {"train/loss", "train/lr", "train/grad_norm", "eval/loss", "eval/accuracy"})
    CHECK_MESSAGE(contains(events, tag), tag);
  CHECK_ERROR(train_with(args, 1, true), "already holds a run; continue it with resume_from_checkpoint");
  args.overwrite_output_dir = true, args.max_steps = 2;
  CHECK(train_with(args, 1, true).steps == 2);
  CHECK(!std::filesystem::exists(out / "run/checkpoint-4"));
  CHECK(std::filesystem::exists(out / "run/checkpoint-2"));
  CHECK(data::read_json(out / "run/trainer_state.json").at("global_step").as_int() == 2);
  args.resume_from_checkpoint = true, args.max_steps = 3;  // a resumed run keeps what is there
  CHECK(train_with(args, 1, true).steps == 3);
  CHECK(std::filesystem::exists(out / "run/checkpoint-2"));
}

TEST_CASE("argument choices: gradient_checkpointing has the same bits") {
  TrainingArguments args{.per_device_train_batch_size = 4, .learning_rate = 0.01, .max_steps = 3};
  std::vector<float> weights[2];
  for (const bool recomputes : {false, true}) {
    args.gradient_checkpointing = recomputes;
    start_with(args, 1, [&](train::TrainJob& job) {
      manual_seed(5);
      nn::Sequential net(nn::Linear({.in = 6, .out = 8}), nn::Linear({.in = 8, .out = 3}));
      train::TrainerOptions o = args.trainer_options();
      o.loss = [](const Variable& y, const Tensor& target) { return cross_entropy(y, target); };
      o.data = data::share(data::TensorDataset(randn({24, 6}), zeros({24}, {.dtype = i64})));
      train::Trainer trainer(job, net, o);
      trainer.fit();
      CHECK(trainer.engine().config().activation_checkpointing.enabled == recomputes);
      for (const auto& [name, tensor] : trainer.full_model())
        for (const float value : tensor.to_vector<float>()) weights[recomputes].push_back(value);
    });
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("padding: batches have the length of their longest sample") {
  struct Texts : data::Dataset<data::Example> {
    int64_t size() const override { return 3; }
    data::Example get(int64_t i) const override {
      return {full({i, 2}, 7, {.dtype = i64, .device = cpu}), full({2 * i}, 5, {.dtype = i64, .device = cpu})};
    }
  };
  const data::PaddedDataset padded(data::share(Texts()), {.input_pad = 9, .pad_to_multiple_of = 4});
  CHECK(padded.size() == 3);
  CHECK(padded.get(1).input.shape() == Shape{1, 2});
  const int64_t indices[] = {1, 0, 2};
  const data::Example batch = *padded.get_batch(indices);
  CHECK(batch.input.shape() == Shape{3, 4, 2});
  CHECK(batch.input.to_vector<int64_t>() ==
        std::vector<int64_t>{7, 7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 7, 7, 9, 9, 9, 9});
  CHECK(batch.target.to_vector<int64_t>() ==
        std::vector<int64_t>{5, 5, -100, -100, -100, -100, -100, -100, 5, 5, 5, 5});
  CHECK(data::collate_padded({ones({}), zeros({})}, 3).to_vector<float>() == std::vector<float>{1, 0});
  CHECK_ERROR(data::collate_padded({ones({2, 3}), ones({2, 4})}, 0), "but for dim 0, got");
  CHECK_ERROR(data::collate_padded({ones({2}), ones({})}, 0), "as sample 1 of the batch");
  CHECK_ERROR(data::collate_padded({}, 0), "expected at least one tensor");
  CHECK_ERROR(data::PaddedDataset(nullptr), "expected a dataset, got none");
}
