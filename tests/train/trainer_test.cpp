// The Trainer: from options to a configuration, interrupted and resumed runs, evaluation, rejected options.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "optim/optim.h"
#include "optim/schedule.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/output.h"
#include "tests/temp_dir.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

data::DatasetPtr<data::Example> samples(int64_t count, uint64_t seed) {
  manual_seed(seed);
  const Tensor x = randn({count, 6});
  return data::share(data::TensorDataset(x, argmax(x.narrow(1, 0, 3), 1)));
}
Variable loss(const Variable& scores, const Tensor& target) { return cross_entropy(scores, target); }
Variable accuracy(const Variable& scores, const Tensor& target) {
  return mean(Variable(eq(argmax(scores.tensor(), -1), target).to(f32)));
}

using Values = std::map<std::string, std::vector<float>>;
Values values_of(const nn::State& state) {
  Values all;
  for (const auto& [name, tensor] : state) all[name] = tensor.to_vector<float>();
  return all;
}
/// The lines of a run's metrics.jsonl.
std::vector<data::Json> lines_of(const std::string& out) {
  std::vector<data::Json> all;
  std::ifstream file(out + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) all.push_back(data::parse_json(line, "metrics"));
  return all;
}

struct Found {
  Values model;
  std::vector<std::pair<std::string, double>> values;
  int64_t steps = 0;
};

/// Runs a training on threads without output.
Found run(train::TrainOptions o, const std::function<void(train::TrainerOptions&)>& change = {}) {
  Found found;
  o.json = true;
  const HeldOutput nowhere;
  train::start(o, "", [&](train::TrainJob& job) {
    manual_seed(5);
    Classifier net;
    train::TrainerOptions t{.loss = loss,
                            .data = samples(64, 7),
                            .evaluate = samples(30, 8),
                            .metrics = {{"accuracy", accuracy}},
                            .evaluate_batch = 8,
                            .optimizer = optimizer_of<optim::AdamW>(optim::AdamWOptions{.lr = 0.02})};
    if (change) change(t);
    train::Trainer trainer(job, net, t);
    trainer.fit();
    const auto values = trainer.evaluate();
    const auto model = trainer.full_model();
    if (!job.team().leads()) return;
    found = {values_of(model), values, trainer.step()};
  });
  return found;
}

/// A plan on so many ranks, and the micro-batches of a step on each.
struct Row {
  const char* plan = "";
  int ranks = 0;
  int64_t accumulate = 4;
  const char* offload = "none";
};
train::TrainOptions options(const Row& row = {}, int64_t steps = 0) {
  train::TrainOptions o;
  o.plan = row.plan;
  o.parallel.ranks = row.ranks;
  o.parallel.accumulate = row.accumulate;
  o.parallel.offload = row.offload;
  o.batch = 4;
  o.epochs = 2;
  o.steps = steps;
  return o;
}

/// Runs five steps, which end within an epoch, in one process; goes on with these options.
Found run_on_from_five(train::TrainOptions o, const std::function<void(train::TrainerOptions&)>& change = {}) {
  const TempDir out;
  train::TrainOptions five = options({}, 5);
  five.out = o.out = out.str();
  run(five, change);
  o.resume = true;
  return run(o, change);
}

}  // namespace

TEST_CASE("trainer: the same bits under any plan, and a run that another plan goes on with") {
  const Found one = run(options());
  CHECK(one.steps == 8);
  CHECK(one.values.size() == 2);
  for (const Row& row : std::vector<Row>{
           {"dp2", 2, 2}, {"dp4+zero3", 4, 1}, {"dp2+zero2", 2, 2}, {"pp2", 2, 4}, {"dp2+pp2+zero1", 4, 2}}) {
    const Found other = run(options(row));
    CHECK_MESSAGE(other.model == one.model, row.plan);
    CHECK_MESSAGE(other.values == one.values, row.plan);
    CHECK_MESSAGE(run_on_from_five(options(row)).model == one.model, row.plan, " goes on from one process");
  }
  const Found sharded = run(options({"tp2", 2}));
  for (const auto& [name, values] : one.model) {
    REQUIRE(sharded.model.at(name).size() == values.size());
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(sharded.model.at(name)[i] - values[i]) < 1e-5);
  }
}

TEST_CASE("trainer: a stream gives the same bits under other plans, which go on where one stopped") {
  struct Endless : data::Dataset<data::Example> {
    int64_t size() const override { return data::endless_samples; }
    data::Example get(int64_t i) const override {
      const RandomScope own({.seed = 2, .micro_batch = uint64_t(i)});
      return {randn({6}, {.device = cpu}), Tensor::from<int64_t>({i % 3}, {})};
    }
  };
  // 4 micro-batches of 4 samples per step.
  const auto streamed = [&](train::TrainerOptions& t) {
    t.data = nullptr;
    t.batches = [](int64_t step, int64_t micro, int64_t) {
      std::vector<data::Example> batch;
      for (int64_t i = 0; i < 4; ++i) batch.push_back(Endless().get((step * 4 + micro) * 4 + i));
      return data::collate(batch);
    };
  };
  const train::TrainOptions o = options({}, 12);  // more than one epoch
  const Found one = run(o, streamed);
  CHECK(one.steps == 12);
  for (const Row& row : std::vector<Row>{{"dp2", 2, 2}, {"dp4+zero2", 4, 1}, {"pp2", 2, 4}})
    CHECK_MESSAGE(run_on_from_five(options(row, 12), streamed).model == one.model, row.plan,
                  " goes on from one process");
  CHECK_ERROR(run(o, [](train::TrainerOptions& t) { t.data = data::share(Endless()); }), "a stream");
}

TEST_CASE("trainer: impossible options are rejected before training") {
  train::TrainOptions o;
  o.parallel.ranks = 1, o.batch = 4;
  CHECK_ERROR(run(o, [](train::TrainerOptions& t) { t.best = "val_loss", t.load_best = true; }),
              "load_best: expected a folder (--out), `best`, and data to evaluate, got no folder");
  struct Follows : optim::WarmupLR {
    using WarmupLR::WarmupLR;
    bool wants_metric() const override { return true; }
  };
  CHECK_ERROR(run(o,
                  [](train::TrainerOptions& t) {
                    t.schedule = [](optim::Optimizer& optimizer, int64_t) {
                      return std::make_unique<Follows>(optimizer, Follows::Options{});
                    };
                  }),
              "got ReduceLROnPlateau, which follows a metric");
  const TempDir out;
  o.out = out.str();
  CHECK_ERROR(run(o, [](train::TrainerOptions& t) { t.load_best = true; }), "got no `best`");
  CHECK(std::filesystem::is_empty(out.path));
  nn::Linear net({.in = 2, .out = 1});
  CHECK_ERROR(train::load_model(net, ""), "expected a folder, got an empty name");
}

TEST_CASE("trainer: file, --set and options become one configuration") {
  // The number at `key` (with at most one dot) of the configuration, or the error.
  const auto number_at = [](const std::string& key, const std::string& file, const std::vector<std::string>& set = {},
                            const std::function<void(train::TrainOptions&)>& change = {}) {
    train::TrainOptions o = options();
    o.config = file, o.set = set;
    if (change) change(o);
    std::string found;
    const std::string said = message([&] {
      train::start(o, "", [&](train::TrainJob& job) {
        data::Json own(data::Json::Object{});
        own["gradient_clipping"] = 0;
        CHECK(job.options().seed == (key == "seed" ? 9 : 1));
        const data::Json all = engine::to_json(job.config(own));
        const size_t dot = key.find('.');
        const data::Json* at = all.find(key.substr(0, dot));
        if (dot != key.npos) at = at->find(key.substr(dot + 1));
        found = str(at->as_number());
      });
    });
    return found.empty() ? said : found;
  };
  const std::string clip = "gradient_clipping", micro = "train_micro_batch_size_per_gpu",
                    stage = "zero_optimization.stage", two = R"({"gradient_clipping": 2})",
                    two_samples = R"({"train_micro_batch_size_per_gpu": 2})";
  CHECK(number_at(clip, "") == "0");
  CHECK(number_at(clip, two) == "2");
  CHECK(number_at(clip, R"({"gradient_clipping": "auto"})") == "0");
  CHECK(number_at(clip, two, {"gradient_clipping=3"}) == "3");
  CHECK(number_at(micro, two_samples) == "2");
  CHECK(number_at(stage, "", {"zero_optimization.stage=1"}) == "1");
  CHECK(number_at("seed", R"({"seed": 9})") == "9");
  CHECK(number_at(clip, "", {"gradient_clipping.x=1", "gradient_clipping=2"}) == "2");
  CHECK(contains(number_at(micro, two_samples, {}, [](auto& o) { o.given = {"batch"}; }),
                 "- ds train_micro_batch_size_per_gpu=2 vs args --batch=4"));
  CHECK(contains(number_at(stage, "", {"zero_optimization.stage=1"}, [](auto& o) { o.plan = "dp1+zero2"; }),
                 "ZeRO stage 2 contradicts the configuration, where zero_optimization.stage is 1"));
  CHECK(contains(number_at(clip, "", {}, [](auto& o) { o.save_every = 3; }), "--save-every 3 needs --out DIR"));
  CHECK(contains(number_at(clip, "", {"nonsense=1"}), "nonsense: no such key"));
  CHECK(contains(number_at(clip, "", {"stage"}), "--set stage: expected KEY=VALUE"));
  CHECK(contains(number_at(clip, "", {"gradient_clipping=2", "gradient_clipping.x=1"}),
                 "gradient_clipping is an integer, not an object"));
  CHECK(contains(number_at(clip, "", {}, [](auto& o) { o.plan = "pp3"; }), "pp3 is invalid: "));
  CHECK(contains(number_at(clip, R"({"bf16": {"enabled": true}})", {}, [](auto& o) { o.precision = "f16"; }),
                 "--precision f16 contradicts the configuration, where bf16.enabled is true"));
}

TEST_CASE("trainer: best checkpoints, notes, schedules") {
  const TempDir out;
  train::TrainOptions o = options();
  o.out = out.str();
  o.epochs = 50;
  int64_t planned = 0;
  const Found found = run(o, [&](train::TrainerOptions& t) {
    t.best = "-val_accuracy";
    t.notes["words"] = 3;
    t.schedule = [&](optim::Optimizer& optimizer, int64_t steps) {
      return planned = steps, std::make_unique<optim::LambdaLR>(optimizer, [](int64_t) { return 1.; });
    };
    t.callbacks = {{.on_step_end = [](train::RunState& at) { at.line["twice"] = 2 * at.step; }},
                   {.on_evaluate = [](train::RunState& at) { at.control.stop = at.epoch == 5; }}};
  });
  CHECK(found.steps == 20);
  CHECK(planned == 200);
  CHECK(data::read_json(out / "config.json").at("words").as_int() == 3);
  CHECK(std::filesystem::exists(out / "best/latest"));
  int64_t lines = 0;
  for (const data::Json& line : lines_of(o.out)) CHECK(line.at("twice").as_int() == 2 * ++lines);
  CHECK(lines == found.steps);
  Classifier net;
  train::load_model(net, o.out);
  CHECK(values_of(net.state()) == found.model);
}

TEST_CASE("trainer: callbacks see each event, and one rank's request is followed by all") {
  for (const Row& row : std::vector<Row>{{}, {"dp2", 2, 2}, {"pp2", 2}}) {
    INFO(row.plan);
    const TempDir out;
    train::TrainOptions o = options(row);  // two epochs of four steps
    o.out = out.str();
    std::vector<std::string> events(2);
    std::vector<int64_t> loaded(2);
    std::atomic<size_t> ranks = 0;
    const auto change = [&](train::TrainerOptions& t) {
      const size_t rank = ranks++;
      const auto note = [&events, rank](char event) {
        return [&events, rank, event](auto&) { events[rank] += event; };
      };
      t.callbacks = {{.on_train_begin = note('('),
                      .on_epoch_begin = note('['),
                      .on_epoch_end = note(']'),
                      .on_step_end = note('s'),
                      .on_evaluate = note('e'),
                      .on_save = note('c'),
                      .on_train_end = note(')'),
                      .name = "events",
                      .state = [&events, rank] { return data::Json(int64_t(events[rank].size())); },
                      .load_state = [&loaded, rank](const data::Json& saved) { loaded[rank] = saved.as_int(); }}};
      if (rank > 0 || row.ranks == 0)
        t.callbacks.push_back({.on_step_end = [](train::RunState& at) {
          CHECK(at.epoch == (at.step - 1) / 4 + 1);
          CHECK(at.line.at("loss").as_number() == at.loss);
          at.control.evaluate |= at.step == 2;
          at.control.save |= at.step == 3;
          at.control.stop = at.step == 6;
        }});
    };
    CHECK(run(o, change).steps == 6);
    const std::string until_stop =
        "([s"
        "se"
        "sc"
        "s]ec"
        "[s"
        "s"
        "c)";
    for (size_t rank = 0; rank < ranks; ++rank) CHECK(events[rank] == until_stop);
    o.resume = true;
    ranks = 0, events = {"", ""};
    CHECK(run(o, change).steps == 8);
    for (size_t rank = 0; rank < ranks; ++rank) {
      CHECK(events[rank] == "([ss]ec)");
      CHECK(loaded[rank] == int64_t(until_stop.size()) - 2);  // the checkpoint was written before its `c`
    }
  }
  const train::Callback stops{.on_train_begin = [](train::RunState& at) { at.control.stop = true; }};
  CHECK(run(options(), [&](train::TrainerOptions& t) { t.callbacks = {stops}; }).steps == 0);
  const train::Callback evaluates{.on_step_end = [](train::RunState& at) { at.control.evaluate = true; }};
  CHECK_ERROR(run(options(), [&](train::TrainerOptions& t) { t.evaluate = nullptr, t.callbacks = {evaluates}; }),
              "[Trainer] a callback set control.evaluate: expected data to evaluate, got none");
}

TEST_CASE("trainer: predictions keep what preprocess_logits_for_metrics returns") {
  for (const Row& row : std::vector<Row>{{}, {"dp2", 2, 2}, {"pp2", 2}}) {
    INFO(row.plan);
    const Found found = run(options(row), [](train::TrainerOptions& t) {
      t.preprocess_logits_for_metrics = [](const Variable& scores, const Tensor&) { return argmax(scores, 1); };
      t.compute_metrics = [](const train::Predictions& p) {
        CHECK(p.predictions.shape() == p.label_ids.shape());
        const double right = sum(eq(p.predictions.to(i64), p.label_ids).to(f32)).item();
        return std::vector<std::pair<std::string, double>>{{"right", right / 30}};
      };
    });
    REQUIRE(found.values.size() == 3);
    CHECK(found.values[2].first == "val_right");
    CHECK(found.values[2].second == doctest::Approx(found.values[1].second).epsilon(1e-6));
  }
}

TEST_CASE("trainer: says how many samples an epoch leaves out") {
  const auto more = [](train::TrainerOptions& t) { t.data = samples(70, 7); };
  train::TrainOptions o = options();
  {
    const HeldOutput said(std::cerr);
    CHECK(run(o, more).steps == 8);
    CHECK(contains(said.text(), "note: each epoch leaves out 6 of 70 samples, as a step takes 16; "));
  }
  o.set = {"dataloader_drop_last=false"};
  const HeldOutput said(std::cerr);
  CHECK(run(o, more).steps == 10);
  CHECK(!contains(said.text(), "leaves out"));
}

TEST_CASE("trainer: an average of the parameters has the same bits under any plan, and goes on") {
  const auto averaged = [&](train::TrainOptions o, const std::string& out) {
    o.set.push_back("ema.decay=0.75");
    o.out = out;
    o.save_every = o.eval_every = 1;
    o.resume = std::filesystem::exists(out + "/checkpoints");
    return run(o);
  };
  // The expected averages, from the parameters after each step (of runs with 1 to 5 steps).
  Values by_hand;
  Found without;
  for (int64_t steps = 1; steps <= 5; ++steps) {
    without = run(options({}, steps));
    for (const auto& [name, values] : without.model) {
      auto& average = by_hand[name];
      if (steps == 1) average = values;
      for (size_t i = 0; i < values.size(); ++i) average[i] += 0.25f * (values[i] - average[i]);
    }
  }
  Values first;
  for (const Row& row : std::vector<Row>{{},
                                         {"dp2+zero1", 2, 2},
                                         {"dp4+zero3", 4, 1},
                                         {"dp2+zero3", 2, 2, "cpu"},
                                         {"dp2+zero2", 2, 2, "nvme:"},
                                         {"dp2+zero3", 2, 2, "nvme:"},
                                         {"pp2", 2, 4},
                                         {"dp2+pp2+zero1", 4, 2},
                                         {"tp2", 2, 4}}) {
    const TempDir folder;
    const std::string out = folder / "run";
    averaged(options({}, 2), out);  // the first steps in one process
    train::TrainOptions o = options(row, 5);
    if (o.parallel.offload.ends_with(':')) o.parallel.offload += folder.str();
    const Found last = averaged(o, out);
    Classifier average;
    train::load_model(average, out, true);
    const Values found = values_of(average.state());
    for (const auto& [name, values] : by_hand)
      for (size_t i = 0; i < values.size(); ++i)
        CHECK_MESSAGE(found.at(name)[i] == doctest::Approx(values[i]).epsilon(1e-5), row.plan, " ", name);
    if (first.empty()) first = found;
    // The last evaluation has the metrics of the parameters, which evaluation must not change, and of their average.
    REQUIRE(last.values.size() == 4);
    if (std::string(row.plan) != "tp2") {
      CHECK_MESSAGE(found == first, row.plan);
      CHECK_MESSAGE(last.model == without.model, row.plan);
      CHECK_MESSAGE(last.values[0] == without.values[0], row.plan);
    }
    CHECK(last.values[2].first == "ema_val_loss");
    CHECK(last.values[3].first == "ema_val_accuracy");
    const auto held_out = samples(30, 8);
    const double expected = train::means_of(*held_out, 30, cpu, [&](const data::Example& all) {
      return std::vector<Variable>{loss(average(all.input), all.target)};
    })[0];
    CHECK_MESSAGE(last.values[2].second == doctest::Approx(expected).epsilon(1e-5), row.plan);
    CHECK(std::abs(last.values[2].second - last.values[0].second) > 1e-4);
    for (const data::Json& line : lines_of(out)) CHECK(line.find("ema_val_loss"));
    // it saves after every step and keeps two checkpoints
    int64_t kept = 0;
    for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints")) kept += entry.is_directory();
    CHECK(kept == 2);
  }
  const TempDir none;
  train::TrainOptions o = options({}, 1);
  o.out = none.str();
  run(o);
  Classifier net;
  CHECK_ERROR(train::load_model(net, o.out, true), "this run has no averaged parameters");
}

TEST_CASE("trainer: evaluates once behind each step, the last one too") {
  int evaluations = 0;
  train::TrainOptions o = options();
  o.eval_every = 4;  // twice in 8 steps
  run(o, [&](train::TrainerOptions& t) {
    t.metrics = {{"count", [&](const Variable& scores, const Tensor&) {
                    ++evaluations;
                    return mean(scores);
                  }}};
  });
  CHECK(evaluations == 3 * 4);  // after steps 4 and 8, and one by run() itself; 4 batches each
}

TEST_CASE("trainer: what is refused leaves a folder as it is") {
  const TempDir out;
  train::TrainOptions o = options({}, 2);
  o.out = out.str();
  run(o);
  const auto listing = [&] {
    std::map<std::string, std::filesystem::file_time_type> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out.path))
      all[entry.path().string()] = entry.last_write_time();
    return all;
  };
  const auto before = listing();
  CHECK_ERROR(run(o), "already holds a run; continue it with --resume");
  o.resume = true;
  CHECK_ERROR(run(o, [](train::TrainerOptions& t) { t.facts = data::parse_json(R"({"words": 3})", "facts"); }),
              "--resume needs the same run, but words was not set and is now 3");
  CHECK_ERROR(run(o,
                  [](train::TrainerOptions& t) {
                    t.notes = data::Json::Object{{"text", "caf\xe9.txt"}};
                  }),
              "expected paths and options in UTF-8, because the run's config.json stores them, got caf\\xe9.txt");
  CHECK_ERROR(run(o, [](train::TrainerOptions& t) { t.data = nullptr; }), "expected data or batches, got neither");
  CHECK(listing() == before);
  // A symbolic link that another user put there is not followed.
  const std::string target = out.write("target", "kept"), metrics = out / "metrics.jsonl";
  std::filesystem::remove(out / "checkpoints/latest"), std::filesystem::remove(metrics);
  std::filesystem::create_symlink(target, metrics);
  o.resume = false;
  CHECK_ERROR(run(o), "metrics.jsonl: cannot be written: it is a symbolic link");
  CHECK(out.read("target") == "kept");
}

TEST_CASE("prepare: a loop of one's own under the job's configuration") {
  std::vector<std::vector<float>> found;
  for (const auto& [ranks, zero, accumulate] :
       std::vector<std::tuple<int, int, int64_t>>{{0, -1, 4}, {2, 3, 2}, {4, 1, 1}}) {
    train::TrainOptions o = options({"", ranks, accumulate});
    if (zero >= 0) o.plan = str("zero", zero);
    train::start(o, "", [&](train::TrainJob& job) {
      manual_seed(5);
      Classifier net;
      optim::AdamW adam(net.parameters(), {.lr = 0.02});
      auto [model, optimizer, loader, schedule] = train::prepare(job, net, adam, samples(64, 7));
      CHECK(schedule == nullptr);
      CHECK(&optimizer == &adam);
      for (auto& [x, y] : *loader) {
        model.backward(cross_entropy(model(x), y));
        model.step();
      }
      CHECK(model.global_steps() == 4);
      const auto full = model.zero().gathered();
      if (job.team().leads()) found.push_back(net.up.weight.tensor().to_vector<float>());
    });
  }
  REQUIRE(found.size() == 3);
  CHECK(found[0] == found[1]);
  CHECK(found[0] == found[2]);
  CHECK_ERROR(train::start(options({"pp2", 2}), "",
                           [&](train::TrainJob& job) {
                             Classifier net;
                             optim::AdamW adam(net.parameters(), {});
                             train::prepare(job, net, adam);
                           }),
              "expected a plan that leaves the model whole");
}
