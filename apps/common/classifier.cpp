#include "apps/common/classifier.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "apps/common/progress.h"
#include "data/cifar.h"
#include "data/digits.h"
#include "data/idx.h"
#include "data/loader.h"
#include "data/to_device.h"
#include "optim/optim.h"
#include "trace/trace.h"

namespace apps {

using namespace lockstep;

namespace {

data::TensorDataset load_split(const ClassifierOptions& o, bool train) {
  if (o.data == "digits") {
    const int64_t count = train ? o.samples : std::max<int64_t>(o.samples / 4, 1);
    return data::to_tensors(data::SyntheticDigits(count, o.common.seed * 2 + (train ? 0 : 1)));
  }
  LOCKSTEP_CHECK(std::filesystem::is_directory(o.data), "--data ", o.data, ": expected 'digits' or a folder with MNIST's IDX files or CIFAR-10's binary batches");
  if (std::filesystem::exists(o.data + "/test_batch.bin")) return data::load_cifar10(o.data, train);
  return data::load_mnist(o.data, train);
}

struct Score { double accuracy = 0, loss = 0; };

/// Every sample once: rank r takes batches r, r + ranks, ...; sums are over the list of all batches, in its order.
Score evaluate(nn::Sequential& model, const data::TensorDataset& set, const Team& team, data::ToDevice& to_device) {
  const NoGrad no_grad;
  model.eval();
  constexpr int64_t kBatch = 256;
  const int64_t batches = (set.size() + kBatch - 1) / kBatch;
  std::vector<double> sums(size_t(2 * batches));  // right answers and loss of each batch
  std::vector<std::pair<size_t, Tensor>> made;    // where they are, until all are under way
  const Tensor inputs = set.inputs(), targets = set.targets();
  for (int64_t b = team.rank(); b < batches; b += team.size()) {
    const int64_t count = std::min(kBatch, set.size() - b * kBatch);
    const Tensor y = to_device(targets.narrow(0, b * kBatch, count));
    const Variable logits = model(to_device(inputs.narrow(0, b * kBatch, count)));
    made.emplace_back(size_t(2 * b), sum(eq(argmax(logits, -1), y)));
    made.emplace_back(size_t(2 * b + 1), cross_entropy(logits, y, {.reduction = Reduction::sum}).tensor());
  }
  for (const auto& [at, value] : made) sums[at] = value.item();
  team.sum(sums, "evaluation");
  Score score;
  for (size_t i = 0; i < sums.size(); i += 2) score.accuracy += sums[i], score.loss += sums[i + 1];
  model.train();
  return {score.accuracy / double(set.size()), score.loss / double(set.size())};
}

std::map<std::string, double> with_loader(std::map<std::string, double> numbers, const data::LoaderState& state) {
  numbers["loader.seed"] = double(state.seed);
  numbers["loader.epoch"] = double(state.epoch);
  numbers["loader.samples"] = double(state.samples);
  numbers["loader.dataset_size"] = double(state.dataset_size);
  return numbers;
}

void train(const std::string& name, const ClassifierOptions& o, const MakeModel& make_model, const Team& team) {
  const data::TensorDataset training = load_split(o, true), test = load_split(o, false);
  team.check_same("--data " + o.data, {&training.inputs(), &training.targets(), &test.inputs(), &test.targets()});
  const auto model = make_model(training.inputs().size(1), training.inputs().size(2));
  data::ToDevice to_device(device_of(o.common, team));
  model->to(to_device.device());
  const int64_t all_steps = o.steps > 0 ? o.steps : training.size() / std::max<int64_t>(o.batch * o.common.parallel.accumulate * team.size(), 1) * o.epochs;
  const std::unique_ptr<optim::Optimizer> made = make_optimizer(o.optimizer, {{model->parameters(), o.weight_decay}}, o.lr, {}, all_steps, team);
  optim::Optimizer& optimizer = *made;
  optimizer.name_parameters([&] {
    std::vector<std::pair<std::string, Variable>> names;
    for (auto& p : model->named_parameters()) names.emplace_back(p.name, p.variable);
    return names;
  }());
  MaybeDataParallel devices(o.common.parallel, *model, [&] { return std::move(*make_model(training.inputs().size(1), training.inputs().size(2))); });
  MicroBatches micro_batches(team, *model, optimizer, o.common.parallel);
  const int64_t samples_per_step = o.batch * micro_batches.count();
  LOCKSTEP_CHECK(samples_per_step <= training.size(), "--batch ", o.batch, " x ", micro_batches.count(), " micro-batches of a step are more than the ", training.size(), " training samples");
  // A step is M micro-batches of full size: the epoch's last samples short of that are left out, other ones every epoch.
  const data::MicroBatchSampler sampler({.samples = training.size(), .micro_batch = o.batch, .micro_batches = micro_batches.count(), .world = team.size(), .rank = team.rank(), .seed = o.common.seed, .interleaved = micro_batches.are_interleaved()});
  data::DataLoader loader(training, {.batch_size = o.batch, .sampler = sampler, .drop_last = true, .workers = o.workers, .seed = o.common.seed, .world = team.size()});

  Json config(Json::Object{});
  config["program"] = name;
  config["channels"] = training.inputs().size(1);
  config["size"] = training.inputs().size(2);
  config["batch"] = o.batch;
  config["micro_batches"] = micro_batches.count();
  config["optimizer"] = o.optimizer.name;
  config["lr"] = o.lr;
  config["weight_decay"] = o.weight_decay;
  config["seed"] = int64_t(o.common.seed);
  config["data"] = o.data;
  Run run(o.common, team, config, {"program", "channels", "size", "batch", "micro_batches"});
  int64_t step = 0;
  if (o.common.resume) {
    std::map<std::string, double> numbers;
    micro_batches.load([&] { numbers = run.load(*model, optimizer); });
    step = int64_t(numbers.at("step"));
    loader.load_state({.seed = uint64_t(numbers.at("loader.seed")), .epoch = int64_t(numbers.at("loader.epoch")), .samples = int64_t(numbers.at("loader.samples")), .dataset_size = int64_t(numbers.at("loader.dataset_size"))});
  }
  const bool talks = team.leads() && !o.common.json;
  if (talks) std::cout << nn::summary(*model);

  std::optional<Interrupt> interrupt;
  if (team.owns_process()) interrupt.emplace();
  const auto save = [&] {
    set_random_step(uint64_t(step));
    if (run.has_folder()) micro_batches.save([&] { run.save(*model, optimizer, with_loader({{"step", double(step)}}, loader.state())); });
  };
  Progress progress(step, sampler.steps() * o.epochs, "samples", double(samples_per_step), !team.leads());
  Score score;
  bool stopped = false;
  for (int64_t epoch = loader.epoch(); epoch < o.epochs && !stopped; ++epoch) {
    double sum_loss = 0;
    int64_t steps = 0;
    for (auto batch = loader.begin(); batch != loader.end() && !stopped;) {
      const trace::Step traced(step, to_device.device());
      const auto report = micro_batches.backward(step, [&, first = true](int64_t) mutable {
        // The step's first micro-batch is there already; the loader's position counts those that were given out.
        if (!std::exchange(first, false)) ++batch;
        const data::Example there = to_device(*batch);
        return cross_entropy(devices([&](auto& net) { return net(there.input); }), there.target);
      });
      micro_batches.step();
      ++step;
      ++steps;
      sum_loss += report.loss;
      trace::counter("loss", {{"loss", report.loss}});
      micro_batches.trace(step, report.loss);
      progress.show(step, fmt::format("loss {:.4f}", sum_loss / double(steps)));
      if ((stopped = report.stop || step == o.steps)) save();
      else ++batch;
    }
    if (stopped) break;
    micro_batches.while_whole([&] { score = evaluate(*model, test, team, to_device); });
    Json line(Json::Object{});
    line["epoch"] = epoch + 1;
    line["step"] = step;
    line["loss"] = sum_loss / double(steps);
    line["test_loss"] = score.loss;
    line["test_accuracy"] = score.accuracy;
    run.metric(line);
    progress.clear();
    if (talks) fmt::print("epoch {:2}  loss {:.4f}  test loss {:.4f}  test accuracy {:.4f}\n", epoch + 1, sum_loss / double(steps), score.loss, score.accuracy);
    save();
  }
  progress.clear();
  if (stopped) micro_batches.while_whole([&] { score = evaluate(*model, test, team, to_device); });
  if (!team.leads()) return;
  if (stopped && step != o.steps) std::cerr << "stopped at step " << step << (run.has_folder() ? "; the checkpoint is written, go on with --resume\n" : "; nothing was saved, as there is no --out\n");
  if (talks) std::cout << devices.report();
  Json result(Json::Object{});
  result["program"] = name;
  result["steps"] = step;
  result["ranks"] = team.size();
  result["test_accuracy"] = score.accuracy;
  result["test_loss"] = score.loss;
  result["parameters"] = model->parameter_count();
  result["samples_per_second"] = progress.rate();
  result["seconds"] = progress.seconds();
  result["peak_memory_mib"] = double(memory_report(to_device.device()).total.peak) / 1048576;
  add_volume(result, optimizer);
  print_result(result, o.common.json);
}

void eval(const std::string& name, const ClassifierOptions& o, const MakeModel& make_model) {
  check_alone("eval");
  apply_common_options(o.common);
  const std::string path = std::filesystem::is_directory(o.checkpoint) ? o.checkpoint + "/checkpoint.safetensors" : o.checkpoint;
  const data::TensorDataset test = load_split(o, false);
  const auto model = make_model(test.inputs().size(1), test.inputs().size(2));
  load_model(*model, path);
  const Team alone(nullptr);
  data::ToDevice to_device(device_of(o.common, alone));
  model->to(to_device.device());
  const Score score = evaluate(*model, test, alone, to_device);
  Json result(Json::Object{});
  result["program"] = name;
  result["test_accuracy"] = score.accuracy;
  result["test_loss"] = score.loss;
  result["samples"] = test.size();
  print_result(result, o.common.json);
}

}  // namespace

int classifier_main(int argc, char** argv, const std::string& name, const std::string& about, ClassifierOptions o, const MakeModel& make_model) {
  CLI::App app(about, name);
  CLI::App& training = *app.add_subcommand("train", "train a model, and test it after every epoch");
  CLI::App& testing = *app.add_subcommand("eval", "test a trained model");
  for (CLI::App* sub : {&training, &testing}) {
    sub->add_option("--data", o.data, "'digits' (drawn by this program), or a folder with MNIST's IDX files (.gz or not) or CIFAR-10's binary batches")->capture_default_str();
    sub->add_option("--samples", o.samples, "training samples of 'digits'; a quarter more are drawn for the test")->check(whole(1, 100'000'000))->capture_default_str();
    add_common_options(*sub, o.common, sub == &training);
  }
  training.add_option("--epochs", o.epochs, "passes over the training samples")->check(whole(1, most_steps))->capture_default_str();
  training.add_option("--steps", o.steps, "end after this many steps (0: all epochs)")->check(whole(0, most_steps))->capture_default_str();
  training.add_option("--batch", o.batch, "samples of a micro-batch")->check(whole(1, most_size))->capture_default_str();
  training.add_option("--lr", o.lr, "learning rate")->check(number(0, 1e6))->capture_default_str();
  training.add_option("--weight-decay", o.weight_decay, "decoupled weight decay")->check(number(0, 1e6))->capture_default_str();
  add_optimizer_options(training, o.optimizer);
  training.add_option("--workers", o.workers, "threads that make batches ahead")->check(whole(0, 1024))->capture_default_str();
  testing.add_option("checkpoint", o.checkpoint, "checkpoint.safetensors, or the folder of a run")->required();
  training.callback([&] {
    apply_common_options(o.common);
    o.common.parallel.identity = identity_of(training);
    run_team(o.common.parallel, [&](Team& team) { train(name, o, make_model, team); });
  });
  testing.callback([&] { eval(name, o, make_model); });
  return run_cli(app, argc, argv);
}

}  // namespace apps
