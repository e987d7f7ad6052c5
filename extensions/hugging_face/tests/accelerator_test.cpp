// The Accelerator: the same bits for any number of ranks, checkpoints, rejected calls.
#include "extensions/hugging_face/accelerator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "base/suggest.h"
#include "data/loader.h"
#include "extensions/optimizers/schedules.h"
#include "optim/optim.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/temp_dir.h"
#include "train/option_group.h"

using namespace lockstep;
using namespace testing;
using train::Accelerator, train::AcceleratorOptions;

namespace {

data::TensorDataset points(int64_t count) {
  manual_seed(7);
  const Tensor x = randn({count, 6});
  return data::TensorDataset(x, argmax(x.narrow(1, 0, 3), 1));
}

/// Runs body on each of `ranks` ranks.
void on_each_rank(int ranks, const std::function<void()>& body) {
  train::TrainOptions o;
  o.parallel.ranks = ranks;
  train::start(o, "", [&](train::TrainJob&) { body(); });
}

struct Endless : data::Dataset<data::Example> {
  int64_t size() const override { return data::endless_samples; }
  data::Example get(int64_t i) const override {
    return {randn({6}) + double(i % 3), Tensor::from<int64_t>({i % 3}, {})};
  }
};

/// A training of three epochs in steps of 16 samples. save: it ends within the second epoch and leaves its state in
/// this folder; resume: it goes on from such a folder.
struct Course {
  int ranks = 1, stage = 0;
  bool split = false, stream = false;
  std::string save = {}, resume = {};
};
struct Found {
  std::vector<float> model;
  std::vector<double> rates;
  std::vector<int64_t> predicted;
};

Found train_on(const Course& course) {
  Found found;
  on_each_rank(course.ranks, [&] {
    const int64_t batch = course.split ? 4 * course.ranks : 4;
    manual_seed(5);
    Classifier net;
    optim::AdamW adam(net.parameters(), {.lr = 0.02});
    optim::StepLR steps(adam, {.step_size = 2, .gamma = 0.5});
    const auto samples = points(62), held_out = points(21);  // an epoch is 3 steps, and 14 more samples
    manual_seed(5);
    const data::LoaderOptions<data::Example> streamed{
        .batch_size = 4, .sampler = data::stream_sampler({.samples = 48, .micro_batch = 4}), .workers = 1};
    data::DataLoader<> batches = course.stream ? data::DataLoader<>(Endless(), streamed)
                                               : data::DataLoader<>(samples, {.batch_size = batch, .shuffle = true});
    data::DataLoader tests(held_out, {.batch_size = batch});
    Accelerator acc({.gradient_accumulation_steps = 4 / course.ranks,
                     .split_batches = course.split,
                     .deepspeed_config = str(R"({"zero_optimization": {"stage": )", course.stage, "}}")});
    auto [schedule, loader, model, optimizer, test_loader] = acc.prepare(steps, batches, net, adam, tests);
    if (!course.resume.empty()) acc.load_state(course.resume);
    for (int epoch = course.resume.empty() ? 0 : 1; epoch < 3; ++epoch) {
      int64_t done = 0;
      for (auto& [x, y] : loader) {
        auto hold = acc.accumulate(model);
        acc.backward(cross_entropy(model(x), y));
        const bool updates = acc.sync_gradients();
        if (updates) acc.clip_grad_norm_(model, 1.0);
        optimizer.step();
        schedule.step();
        optimizer.zero_grad();
        if (!updates) continue;
        if (acc.is_main_process()) found.rates.push_back(schedule.lr());
        if (!course.save.empty() && epoch == 1 && ++done == 2) return acc.save_state(course.save);
      }
    }
    model.eval();
    std::vector<int64_t> predicted;
    {
      const NoGrad no_grad;
      for (auto& [x, y] : test_loader)
        for (const int64_t label : acc.gather_for_metrics(y).to_vector<int64_t>()) predicted.push_back(label);
    }
    const auto entire = acc.engine().full_state().model;
    if (!acc.is_main_process()) return;
    found.predicted = predicted;
    for (const auto& [name, tensor] : entire)
      for (const float value : tensor.to_vector<float>()) found.model.push_back(value);
  });
  return found;
}

/// Checks that ranks that go on from the state of others end as one rank that was not interrupted.
void check_resumed(const Found& one, bool stream) {
  for (const auto& [first, second] : {std::pair(1, 4), std::pair(4, 2), std::pair(2, 1)}) {
    const TempDir folder;
    train_on({.ranks = first, .stream = stream, .save = folder.str()});
    const Found rest = train_on({.ranks = second, .stage = stream ? 0 : 2, .stream = stream, .resume = folder.str()});
    CHECK(rest.model == one.model);
    CHECK(std::equal(rest.rates.begin(), rest.rates.end(), one.rates.end() - int64_t(rest.rates.size())));
    CHECK(rest.rates.size() == (stream ? 4 : 6));
  }
}

}  // namespace

TEST_CASE("accelerator: the same parameters and learning rates for any number of ranks") {
  const Found one = train_on({});
  CHECK(one.rates.size() == 12);
  for (size_t i = 0; i < one.rates.size(); ++i)
    CHECK(one.rates[i] == doctest::Approx(0.02 * std::pow(0.5, double((i + 1) / 2))));
  std::vector<int64_t> labels;
  const auto held_out = points(21);
  for (int64_t i = 0; i < 21; ++i) labels.push_back(held_out.get(i).target.item<int64_t>());
  CHECK(one.predicted == labels);  // each sample once, in order
  for (const Course& course : {Course{1, 2}, {2, 0}, {2, 1}, {2, 2}, {2, 3, true}, {4, 0}, {4, 0, true}, {4, 3}}) {
    INFO(course.ranks, " ranks, stage ", course.stage);
    const Found other = train_on(course);
    CHECK(other.model == one.model);
    CHECK(other.rates == one.rates);
    CHECK(other.predicted == labels);
  }
  check_resumed(one, false);
}

TEST_CASE("accelerator: the last step of an epoch is filled up, as docs/train.md says of 10 samples") {
  for (const bool drop_last : {false, true}) {
    on_each_rank(1, [&] {
      Classifier net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      std::vector<float> rows;
      for (int i = 0; i < 60; ++i) rows.push_back(float(i / 6));
      const data::TensorDataset samples(Tensor::from(rows, {10, 6}), zeros({10}, {.dtype = i64}));
      data::DataLoader batches(samples, {.batch_size = 2, .drop_last = drop_last});
      Accelerator acc({.gradient_accumulation_steps = 4});
      auto [model, optimizer, loader] = acc.prepare(net, sgd, batches);
      std::vector<int64_t> first, steps;
      for (auto& [x, y] : loader) {
        auto hold = acc.accumulate(model);
        first.push_back(int64_t(x[0][0].item()));
        acc.backward(cross_entropy(model(x), y));
        if (acc.sync_gradients()) steps.push_back(int64_t(first.size()));
        optimizer.step();
        optimizer.zero_grad();
      }
      CHECK(first == (drop_last ? std::vector<int64_t>{0, 2, 4, 6} : std::vector<int64_t>{0, 2, 4, 6, 8, 0, 2, 4}));
      CHECK(steps == (drop_last ? std::vector<int64_t>{4} : std::vector<int64_t>{4, 8}));
    });
  }
}

TEST_CASE("accelerator: a stream, saved by some ranks and gone on with by others") {
  const Found one = train_on({.stream = true});
  CHECK(!one.model.empty());
  for (const int ranks : {2, 4}) CHECK(train_on({.ranks = ranks, .stream = true}).model == one.model);
  check_resumed(one, true);
}

TEST_CASE("accelerator: parts prepared one by one, plain backward, files with auto, precision") {
  const auto samples = points(16);
  const auto run = [&](AcceleratorOptions options, int way) {
    std::vector<float> weights;
    on_each_rank(1, [&] {
      manual_seed(5);
      Classifier net;
      optim::AdamW adam(net.parameters(), {.lr = 0.02});
      data::DataLoader batches(samples, {.batch_size = 4});
      Accelerator acc(options);
      if (way == 1) {
        auto loader = acc.prepare(batches);
        auto model = acc.prepare(net);
        CHECK_THROWS_WITH_AS(acc.engine(), doctest::Contains("a model and its optimizer, got none"), Error);
        auto optimizer = acc.prepare(adam);
        for (auto& [x, y] : loader) {
          cross_entropy(model(x), y).backward();
          optimizer.step();
        }
      } else {
        auto [model, optimizer, loader] = acc.prepare(net, adam, batches);
        CHECK(&acc.unwrap_model(model) == &net);
        for (auto& [x, y] : loader) {
          const auto hold = acc.accumulate(model);
          const Variable out = model(x);
          CHECK(net.up.weight.tensor().dtype() == (options.mixed_precision == "bf16" ? bf16 : f32));
          acc.backward(cross_entropy(out, y));
          optimizer.step();
          optimizer.zero_grad();
        }
      }
      weights = net.up.weight.tensor().to(f32).to_vector<float>();
    });
    return weights;
  };
  const auto plain = run({}, 0);
  CHECK(run({}, 1) == plain);
  CHECK(run({.deepspeed_config = R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
     "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-8}}, "steps_per_print": "inf"})"},
            0) == plain);
  for (const char* precision : {"bf16", "fp16"}) {
    const auto low = run({.mixed_precision = precision}, 0);
    CHECK(low != plain);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(std::abs(low[i] - plain[i]) < 0.05);
  }
}

TEST_CASE("accelerator: clips the step that comes, and a skipped step is none of a schedule's") {
  const auto samples = points(4);
  on_each_rank(2, [&] {
    manual_seed(5);
    Classifier net;
    optim::SGD sgd(net.parameters(), {.lr = 1});
    Accelerator acc;
    auto [model, optimizer] = acc.prepare(net, sgd);
    std::vector<double> moved;
    const auto values = [&] {
      std::vector<Tensor> all;
      for (const Variable& p : net.parameters()) all.push_back(p.tensor().reshape({-1}));
      return cat(all).to(f64);
    };
    const data::Example all = samples.get_batch(std::vector<int64_t>{0, 1, 2, 3}).value();
    for (const double max_norm : {0.25, 0., 1e-3}) {
      const Tensor before = values();
      acc.backward(mul_scalar(cross_entropy(model(all.input), all.target), 100));
      if (max_norm > 0) acc.clip_grad_norm_(model, max_norm);
      optimizer.step();
      moved.push_back(std::sqrt(sum(square(sub(values(), before))).item()));
    }
    CHECK(moved[0] == doctest::Approx(0.25).epsilon(1e-3));
    CHECK(moved[1] > 1);
    CHECK(moved[2] == doctest::Approx(1e-3).epsilon(0.05));
  });
  on_each_rank(1, [&] {
    manual_seed(5);
    Classifier net;
    optim::SGD sgd(net.parameters(), {.lr = 1});
    optim::ExponentialLR decay(sgd, {.gamma = 0.5});
    Accelerator acc({.mixed_precision = "fp16"});
    auto [model, optimizer, schedule] = acc.prepare(net, sgd, decay);
    const data::Example all = samples.get_batch(std::vector<int64_t>{0, 1, 2, 3}).value();
    for (const double scale : {1e-3, 1e37, 1e-3}) {
      acc.backward(mul_scalar(cross_entropy(model(all.input), all.target), scale));
      optimizer.step();
      schedule.step();
      schedule.step();  // no effect: it is still the same step
    }
    CHECK(acc.engine().skipped_steps() == 1);
    CHECK(schedule.lr() == 0.25);
  });
  CHECK(contains(message([&] {
                   train::TrainOptions o;
                   o.parallel.ranks = 1, o.precision = "f16";
                   train::start(o, "", [](train::TrainJob& job) {
                     Classifier net;
                     optim::SGD sgd(net.parameters(), {.lr = 1});
                     train::prepare(job, net, sgd);
                   });
                 }),
                 "expected a grad_scaler with --precision f16"));
}

TEST_CASE("accelerator: communication between ranks") {
  on_each_rank(4, [&] {
    Accelerator acc;
    const int64_t rank = acc.process_index();
    CHECK(acc.num_processes() == 4);
    CHECK((acc.is_main_process() == (rank == 0) && acc.is_local_main_process() == (rank == 0)));
    const Tensor mine = full({2}, double(rank));
    CHECK(acc.gather(mine).to_vector<float>() == std::vector<float>{0, 0, 1, 1, 2, 2, 3, 3});
    CHECK(acc.gather(full({}, double(rank))).to_vector<float>() == std::vector<float>{0, 1, 2, 3});
    CHECK(acc.reduce(mine).to_vector<float>() == std::vector<float>{6, 6});
    CHECK(acc.reduce(mine, "mean").to_vector<float>() == std::vector<float>{1.5, 1.5});
    CHECK(mine.to_vector<float>() == std::vector<float>(2, float(rank)));
    const Tensor padded = acc.pad_across_processes(full({rank + 1, 1}, 7), 0, -1);
    CHECK(padded.shape() == Shape{4, 1});
    CHECK(padded.narrow(0, rank, 1).item() == 7);
    if (rank < 3) CHECK(padded.narrow(0, rank + 1, 1).item() == -1);
    const Tensor ahead = acc.pad_across_processes(full({rank + 1, 1}, 7), 0, -1, true);
    if (rank < 3) CHECK(ahead.narrow(0, 0, 1).item() == -1);
    CHECK(ahead.narrow(0, 3, 1).item() == 7);
    acc.wait_for_everyone();
  });
}

TEST_CASE("accelerator: an object of the program's goes into the checkpoint, and steps of a schedule that all count") {
  struct Counter {
    int64_t n = 0;
    data::Json state() const { return n; }
    void load_state(const data::Json& json) { n = json.as_int(); }
  };
  const TempDir folder;
  on_each_rank(1, [&] {
    const auto samples = points(8);
    for (const bool saves : {true, false}) {
      Classifier net;
      optim::AdamW adam(net.parameters(), {.lr = 1});
      optim::ExponentialLR decay(adam, {.gamma = 0.5});
      data::DataLoader batches(samples, {.batch_size = 4});
      Accelerator acc({.step_scheduler_with_optimizer = false});
      auto [model, optimizer, loader, schedule] = acc.prepare(net, adam, batches, decay);
      Counter counter{saves ? 3 : 0};
      acc.register_for_checkpointing(counter);
      if (saves) {
        schedule.step();
        schedule.step();
        for (auto& [x, y] : loader) {
          acc.backward(mean(model(x)));
          optimizer.step();
        }
        acc.save_state(folder.str());
      } else {
        acc.load_state(folder.str());
      }
      CHECK(counter.n == 3);
      CHECK(schedule.lr() == 0.25);
      CHECK(schedule.last_step() == 2);
      acc.free_memory();
      CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("a model and its optimizer, got none"), Error);
    }
  });
}

TEST_CASE("accelerator: invalid calls are rejected") {
  const auto samples = points(32);
  struct Made {
    Accelerator& acc;
    Classifier& net;
    optim::AdamW& adam;
  };
  struct Row {
    std::string expected;
    std::function<void(Made)> body;
    AcceleratorOptions options = {};
  };
  const auto prepare_loader = [&](const Made& m, const data::LoaderOptions<data::Example>& options) {
    data::DataLoader loader(samples, options);
    m.acc.prepare(loader);
  };
  std::vector<int> list = {1, 2};
  const Row rows[] = {
      {"the loader is sharded already (DistributedSampler); pass one that is not: prepare() shards it",
       [&](Made m) { prepare_loader(m, {.batch_size = 4, .sampler = data::DistributedSampler(32, 2, 0)}); }},
      {"the loader is sharded already (MicroBatchSampler); pass one that is not: prepare() shards it",
       [&](Made m) {
         const data::MicroBatchSampler sampler({.samples = 32, .micro_batch = 4});
         prepare_loader(m, {.batch_size = 4, .sampler = sampler});
       }},
      {"the order of a loader's samples (is it sharded already?)",
       [&](Made m) {
         const data::DistributedSampler hidden(32, 2, m.acc.process_index());
         prepare_loader(m, {.batch_size = 4, .sampler = [hidden](int64_t e) { return hidden(e); }});
       }},
      {"expected a batch_size that 2 ranks can split, got 3",
       [&](Made m) { prepare_loader(m, {.batch_size = 3}); },
       {.split_batches = true}},
      {"expected a model, its optimizer, a data::DataLoader or a schedule, got something else",
       [&](Made m) { m.acc.prepare(m.net, m.adam, samples); }},
      {"acc.skip(it)", [&](Made m) { m.acc.prepare(list); }},
      {"got one that prepare() returned",
       [](Made m) {
         auto [model, optimizer] = m.acc.prepare(m.net, m.adam);
         m.acc.prepare(model);
       }},
      {"this model is prepared already", [](Made m) { m.acc.prepare(m.net, m.net); }},
      {"expected the model of the optimizer's parameters too", [](Made m) { m.acc.prepare(m.adam); }},
      {"an Accelerator trains one model", [](Made m) { m.acc.prepare(m.net, m.adam, m.adam); }},
      {"expected `auto hold = acc.accumulate(model);` in the loop, as 2 batches make a step",
       [](Made m) {
         auto [model, optimizer] = m.acc.prepare(m.net, m.adam);
         m.acc.backward(mean(model(zeros({1, 6}))));
       },
       {.gradient_accumulation_steps = 2}},
      {"expected one schedule, got the program's and scheduler.type",
       [](Made m) {
         optim::ExponentialLR decay(m.adam, {.gamma = 0.5});
         m.acc.prepare(m.net, m.adam, decay);
       },
       {.deepspeed_config = R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}})"}},
      {"got scheduler.type ReduceLROnPlateau, whose metric only the program has",
       [](Made m) { m.acc.prepare(m.net, m.adam); },
       {.deepspeed_config = R"({"scheduler": {"type": "ReduceLROnPlateau"}})"}},
      {"- ds train_micro_batch_size_per_gpu=8 vs args per_device_train_batch_size=4\n- ds "
       "gradient_accumulation_steps=4 "
       "vs args gradient_accumulation_steps=2\nThe easiest method",
       [&](Made m) {
         data::DataLoader loader(samples, {.batch_size = 4});
         m.acc.prepare(loader, m.net, m.adam);
       },
       {.gradient_accumulation_steps = 2,
        .deepspeed_config = R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4})"}},
      {str("expected mixed_precision ", listed(train::with_precisions({"no", "fp16", "bf16"})), ", got int8"),
       [](Made) {},
       {.mixed_precision = "int8"}},
      {"expected even_batches true", [](Made) {}, {.even_batches = false}},
      {"expected a call inside the loop over a loader", [](Made m) { m.acc.gather_for_metrics(zeros({4})); }}};
  for (const Row& row : rows)
    CHECK_ERROR(on_each_rank(2,
                             [&] {
                               Classifier net;
                               optim::AdamW adam(net.parameters(), {.lr = 0.02});
                               Accelerator acc(row.options);
                               row.body({acc, net, adam});
                             }),
                row.expected);
  on_each_rank(1, [&] {
    Accelerator acc;
    std::vector<int>& same = acc.prepare(acc.skip(list));
    CHECK(&same == &list);
  });
}

TEST_CASE("accelerator: loops within loops keep their own counts") {
  for (const int ranks : {1, 2}) {
    on_each_rank(ranks, [&] {
      manual_seed(5);
      Classifier net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      const auto samples = points(14), held_out = points(5);
      data::DataLoader batches(samples, {.batch_size = 4}), tests(held_out, {.batch_size = 3});
      Accelerator acc;
      auto [model, optimizer, loader, evaluation] = acc.prepare(net, sgd, batches, tests);
      std::vector<int64_t> rows;
      for (auto& [x, y] : loader) {
        const Tensor out = model(x).tensor();
        model.eval();
        int64_t gathered = 0;
        for (auto& [u, v] : evaluation) {
          gathered += acc.gather_for_metrics(v).size(0);
          (void)u;
        }
        CHECK(gathered == 5);
        for (auto& [u, v] : loader) {  // the same loader again, in evaluation mode, left early
          CHECK(acc.gather_for_metrics(v).size(0) == 4 * ranks);
          (void)u;
          break;
        }
        model.train();
        rows.push_back(acc.gather_for_metrics(out).size(0));
        (void)y;
      }
      CHECK(rows == (ranks == 1 ? std::vector<int64_t>{4, 4, 4, 2} : std::vector<int64_t>{8, 6}));
    });
  }
}

TEST_CASE("accelerator: states that are saved are read again") {
  const TempDir folder;
  for (const std::string part : {"whole", "saved", "resumed"}) {
    on_each_rank(1, [&] {
      manual_seed(1);
      Classifier net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      optim::ReduceLROnPlateau plateau(sgd, {.patience = 0});  // before the first metric, the best one is infinite
      const auto samples = points(8);
      Accelerator acc;
      data::DataLoader<> first(samples, {.batch_size = 2, .shuffle = true});
      auto [model, optimizer, never, schedule] = acc.prepare(net, sgd, first, plateau);
      auto again = acc.prepare(plateau);  // returns the same schedule
      static std::vector<std::vector<int64_t>> entire;
      int64_t at = 0;
      if (part == "resumed") acc.load_state(folder.str()), at = 1;
      for (int64_t epoch = at; epoch < 3; ++epoch) {  // prepares a new loader for each epoch
        data::DataLoader<> plain(samples, {.batch_size = 2, .shuffle = true});
        auto loader = acc.prepare(plain);
        std::vector<int64_t> labels;
        const auto expected = [&]() -> const std::vector<int64_t>& { return entire[size_t(epoch)]; };
        for (auto& [x, y] : loader) {
          acc.backward(cross_entropy(model(x), y));
          optimizer.step();
          for (const float value : x.to_vector<float>()) labels.push_back(int64_t(1e6 * value));
          if (part == "saved" && epoch == 1 && labels.size() == 2 * 12) return acc.save_state(folder.str());
        }
        if (part == "whole") entire.push_back(labels);
        else if (part == "resumed" && epoch == 1)
          CHECK(labels == std::vector<int64_t>(expected().begin() + 2 * 12, expected().end()));
        else if (part == "saved") CHECK(labels == expected());
      }
      schedule.step(1.0);
      CHECK(schedule.lr() == 0.1);
      if (part == "whole") acc.save_state(folder / "end");
    });
  }
  on_each_rank(1, [&] {  // loads a state that was saved after the last epoch, with one loader
    Classifier net;
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::ReduceLROnPlateau plateau(sgd, {.patience = 0});
    const auto samples = points(8);
    data::DataLoader<> batches(samples, {.batch_size = 2});
    Accelerator acc;
    auto [model, optimizer] = acc.prepare(net, sgd);
    CHECK_ERROR(acc.load_state(folder / "end"), "as were saved, 2, got 0");
    auto [loader, schedule] = acc.prepare(batches, plateau);
    acc.load_state(folder / "end");
    CHECK(schedule.last_step() == 1);
    CHECK_ERROR(acc.load_state(""), "expected a folder, got an empty name");
  });
}
