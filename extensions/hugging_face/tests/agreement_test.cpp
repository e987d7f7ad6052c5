// Agreement of ranks, and resumed runs: in evaluation, all ranks have one model and one metric, and they agree on the
// best model. Logs of resumed runs have no duplicates.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "autograd/ops.h"
#include "extensions/hugging_face/accelerator.h"
#include "extensions/hugging_face/arguments.h"
#include "extensions/optimizers/schedules.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "optim/optim.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/output.h"
#include "tests/temp_dir.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;
using train::TrainingArguments;

namespace {

struct Normed : nn::Layer<Normed> {
  nn::Linear a{{.in = 2, .out = 4}}, b{{.in = 4, .out = 1}};
  nn::BatchNorm1d norm{{.channels = 4}};
  Variable forward(const Variable& x) { return b(relu(norm(a(x)))); }
  void fields(nn::Fields& f) override { f("a", a)("norm", norm)("b", b); }
};

Variable squares(const Variable& out, const Tensor& y) { return mse_loss(out, Variable(y)); }

/// Runs body on ranks whose standard output is hidden; returns what they print to stderr.
std::string run_on(const train::TrainOptions& given, int ranks, const train::Body& body) {
  train::TrainOptions o = given;
  o.parallel.ranks = ranks, o.json = true;
  const TempDir folder;
  const HeldOutput nowhere;
  {
    struct Back {
      int err;
      ~Back() {
        ::dup2(err, 2);
        ::close(err);
      }
    } const back{::dup(2)};
    std::FILE* const file = std::fopen((folder / "said").c_str(), "w");
    ::dup2(::fileno(file), 2);
    std::fclose(file);
    train::start(o, "", body);
  }
  return folder.read("said");
}

data::DatasetPtr<data::Example> pairs(int64_t count, uint64_t seed) {
  manual_seed(seed);
  const Tensor x = randn({count, 2});
  return data::share(data::TensorDataset(x, randn({count, 1})));
}

}  // namespace

TEST_CASE("evaluation is of one model on all ranks, the one that is saved, batch norm's statistics too") {
  for (const char* plan : {"dp2", "dp2+zero1", "dp2+zero3"}) {
    CAPTURE(plan);
    const TempDir out;
    const TrainingArguments args{.output_dir = out.str(),
                                 .per_device_train_batch_size = 4,
                                 .per_device_eval_batch_size = 16,
                                 .learning_rate = 1e-2,
                                 .max_steps = 8,
                                 .save_steps = 8};
    train::TrainOptions o = args.options();
    o.plan = plan;
    const auto test = pairs(32, 6);
    std::vector<double> losses(2);
    std::vector<std::vector<float>> means(3);  // of the ranks, and of the whole model
    run_on(o, 2, [&](train::TrainJob& job) {
      manual_seed(1);
      Normed net;
      train::TrainerOptions t = args.trainer_options();
      t.loss = squares, t.data = pairs(64, 5), t.evaluate = test;
      train::Trainer trainer(job, net, t);
      trainer.fit();
      const auto rank = size_t(job.team().rank());
      losses[rank] = trainer.evaluate()[0].second;
      means[rank] = net.norm.running_mean.to_vector<float>();
      for (const auto& [name, tensor] : trainer.full_model())
        if (name == "norm.running_mean") means[2] = tensor.to_vector<float>();
    });
    Normed saved;
    train::load_model(saved, out.str());
    saved.eval();
    const double single = train::means_of(*test, 16, cpu, [&](const data::Example& batch) {
      return std::vector<Variable>{squares(saved(Variable(batch.input)), batch.target)};
    })[0];
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0] == doctest::Approx(single).epsilon(1e-6));
    for (const auto& mean : means) CHECK(mean == saved.norm.running_mean.to_vector<float>());
  }
  // A training loop written by hand.
  run_on({}, 2, [](train::TrainJob&) {
    manual_seed(1);
    Normed net;
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    const auto samples = pairs(16, 5);
    data::DataLoader<> batches(samples, {.batch_size = 4}), tests(samples, {.batch_size = 4});
    train::Accelerator acc;
    auto [model, optimizer, loader, evaluation] = acc.prepare(net, sgd, batches, tests);
    for (auto& [x, y] : loader) {
      acc.backward(squares(model(x), y));
      optimizer.step();
    }
    model.eval();
    for (auto& [x, y] : evaluation) {
      const Tensor all = acc.gather(net.norm.running_mean.reshape({1, 4}));
      CHECK(equal(all.narrow(0, 0, 1).contiguous(), all.narrow(0, 1, 1).contiguous()));
      (void)x, (void)y;
    }
  });
}

TEST_CASE("evaluation is by tokens, however these lie in batches and ranks") {
  // 4 samples of 3 positions: sample 0 has no labels, the others have 1, 2 and 3.
  manual_seed(3);
  const Tensor x = randn({4, 3, 2});
  const Tensor y = Tensor::from<int64_t>({-100, -100, -100, 0, -100, -100, 1, 2, -100, 2, 1, 0}, {4, 3});
  const auto loss = [](const Variable& out, const Tensor& target) {
    return cross_entropy(out.reshape({-1, 3}), Variable(target.reshape({-1})));
  };
  std::optional<double> expected;
  for (const int ranks : {1, 2}) {
    for (const int64_t batch : {4, 2, 1}) {
      if (4 / ranks / batch < 1) continue;
      INFO(ranks, " ranks, batch ", batch);
      const TrainingArguments args{.per_device_train_batch_size = batch,
                                   .per_device_eval_batch_size = batch,
                                   .gradient_accumulation_steps = 4 / ranks / batch,
                                   .learning_rate = 1e-2,
                                   .max_steps = 2};
      run_on(args.options(), ranks, [&](train::TrainJob& job) {
        manual_seed(1);
        nn::Linear net({.in = 2, .out = 3});
        train::TrainerOptions t = args.trainer_options();
        t.loss = loss;
        t.data = t.evaluate = data::share(data::TensorDataset(x, y));
        train::Trainer trainer(job, net, t);
        trainer.fit();
        const double found = trainer.evaluate()[0].second,
                     predicted = trainer.predict(data::TensorDataset(x, y)).metrics[0].second;
        const NoGrad no_grad;
        const double full = loss(net(Variable(x)), y).item();
        if (!job.team().leads()) return;
        if (!expected) expected = full;
        CHECK(full == doctest::Approx(*expected).epsilon(1e-5));
        CHECK(found == doctest::Approx(full).epsilon(1e-6));
        CHECK(predicted == found);
      });
    }
  }
}

TEST_CASE("a rank's own metric does not decide: the best, when to stop, plateau") {
  const TempDir out;
  TrainingArguments args{.output_dir = out.str(),
                         .per_device_train_batch_size = 4,
                         .learning_rate = 1e-2,
                         .num_train_epochs = 10,
                         .eval_strategy = "epoch",
                         .save_strategy = "epoch",
                         .load_best_model_at_end = true,
                         .metric_for_best_model = "drawn",
                         .greater_is_better = true};
  std::vector<int64_t> steps(2);
  run_on(args.options(), 2, [&](train::TrainJob& job) {
    manual_seed(1);
    nn::Linear net({.in = 2, .out = 1});
    train::TrainerOptions t = args.trainer_options();
    t.loss = squares, t.data = pairs(16, 5), t.evaluate = pairs(8, 6);
    t.callbacks = {{.on_evaluate = [best = double(NAN), worse = 0](train::RunState& run) mutable {
      const double now = run.metrics.at(1).second;
      if (!(now <= best)) best = now, worse = 0;
      else if (++worse == 2) run.control.stop = true;
    }}};
    const int rank = job.team().rank();
    t.compute_metrics = [rank, n = std::make_shared<int>(0)](const train::Predictions&) {
      const int at = (*n)++;
      // the values of rank 0 decide: its third one is the best
      const double values[2][5] = {{NAN, 3, 4, 1, 2}, {9, 8, 7, 6, 5}};
      return std::vector<std::pair<std::string, double>>{{"drawn", values[rank][std::min(at, 4)]}};
    };
    train::Trainer trainer(job, net, t);
    trainer.fit();
    steps[size_t(rank)] = trainer.step();
  });
  CHECK(steps == std::vector<int64_t>{10, 10});  // 5 epochs of 2 steps: the third is the best, two worse ones follow
  const data::Json state = data::read_json(out / "trainer_state.json");
  CHECK(state.at("best_metric").as_number() == 4);  // not NaN, which came first
  CHECK(state.at("best_global_step").as_int() == 6);

  std::vector<double> rates(2);
  std::vector<std::vector<float>> weights(2);
  run_on({}, 2, [&](train::TrainJob& job) {
    manual_seed(1);
    nn::Linear net({.in = 2, .out = 1});
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::ReduceLROnPlateau plateau(sgd, {.factor = 0.1, .patience = 0});
    const auto samples = pairs(16, 5);
    data::DataLoader<> batches(samples, {.batch_size = 2});
    train::Accelerator acc;
    auto [model, optimizer, loader, schedule] = acc.prepare(net, sgd, batches, plateau);
    double metric = 1;
    const auto rank = size_t(job.team().rank());
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& [x, y] : loader) {
        acc.backward(squares(model(x), y));
        optimizer.step();
      }
      schedule.step(metric);  // on the two ranks: 1, 1; 0.5, 1.5; 0.25, 2.25
      metric *= rank == 0 ? 0.5 : 1.5;
    }
    rates[rank] = schedule.lr();
    weights[rank] = net.weight.tensor().to_vector<float>();
  });
  CHECK(rates[0] == doctest::Approx(0.001));  // the means are 1, 1 and 1.25
  CHECK(rates[0] == rates[1]);
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("a resumed run: one line per step, the log's means, and changed options") {
  const TempDir out;
  TrainingArguments args{.output_dir = out.str(),
                         .per_device_train_batch_size = 2,
                         .learning_rate = 1e-3,
                         .lr_scheduler_type = "constant",
                         .save_steps = 7,
                         .seed = 1};
  const auto run = [&](int64_t steps, double logging_steps) {
    args.max_steps = steps, args.logging_steps = logging_steps;
    std::string log;
    const std::string said = run_on(args.options(), 1, [&](train::TrainJob& job) {
      manual_seed(1);
      nn::Linear net({.in = 1, .out = 1, .bias = false});
      net.weight.tensor().fill_(0);
      train::TrainerOptions t = args.trainer_options();
      t.loss = squares, t.data = data::share(data::TensorDataset(zeros({64, 1}), ones({64, 1})));  // every loss is 1
      train::Trainer trainer(job, net, t);
      trainer.fit();
      for (const data::Json& entry : trainer.log_history())
        if (const data::Json* loss = entry.find("loss"))
          log += str(entry.at("step").as_int(), ":", loss->as_number(), " ");
    });
    return std::pair(log, said);
  };
  const auto steps_of_metrics = [&] {
    std::ifstream in(out / "metrics.jsonl");
    std::string steps;
    for (std::string line; std::getline(in, line);)
      steps += str(data::parse_json(line, "line").at("step").as_int(), " ");
    return steps;
  };
  CHECK(run(7, 5).first == "5:1 ");
  // The state that a killed process leaves: metrics of steps after the checkpoint, and half a line.
  std::ofstream(out / "metrics.jsonl", std::ios::app) << "{\"step\": 8, \"loss\": 1.0}\n{\"step\": 9, \"lo";
  args.resume_from_checkpoint = true;
  const auto [log, said] = run(12, 4);
  CHECK(log == "5:1 8:1 12:1 ");
  CHECK(!contains(said, "is restored to"));
  CHECK(steps_of_metrics() == "1 2 3 4 5 6 7 8 9 10 11 12 ");
  args.learning_rate = 1e-5, args.weight_decay = 0.1, args.seed = 2;
  const std::string other = run(14, 5).second;
  for (const char* part : {"lr is restored to 0.001 from the checkpoint; the program set 1e-05",
                           "weight_decay is restored to 0 from", "seed is restored to 1 from"})
    CHECK_MESSAGE(contains(other, part), part, " in ", other);
  CHECK(steps_of_metrics() == "1 2 3 4 5 6 7 8 9 10 11 12 13 14 ");
}
