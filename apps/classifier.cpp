// The code that the programs mlp and cnn share: options, data, training and evaluation. See classifier.h.
#include "apps/classifier.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "apps/gpt_commands.h"
#include "autograd/ops.h"
#include "data/images.h"
#include "train/cli.h"
#include "train/optimizer.h"
#include "train/option_group.h"
#include "train/trainer.h"

namespace apps {

using namespace lockstep;

namespace {

struct ClassifierOptions : train::TrainOptions {
  std::string data = "digits";
  int64_t samples = 8000;
  int workers = 1;
  train::OptimizerOptions optimizer;
  std::string run;  // the run's folder, argument of eval
};

data::TensorDataset load_split(const ClassifierOptions& o, bool train) {
  if (o.data == "digits") {
    const int64_t count = train ? o.samples : std::max<int64_t>(o.samples / 4, 1);
    return data::to_tensors(data::SyntheticDigits(count, o.seed * 2 + (train ? 0 : 1)));
  }
  LOCKSTEP_CHECK(std::filesystem::is_directory(o.data), "--data ", o.data,
                 ": expected 'digits' or a folder with MNIST's IDX files or CIFAR-10's binary batches");
  if (std::filesystem::exists(o.data + "/test_batch.bin")) return data::load_cifar10(o.data, train);
  return data::load_mnist(o.data, train);
}

Variable accuracy(const Variable& scores, const Tensor& target) {
  return mean(Variable(eq(argmax(scores.tensor(), -1), target).to(f32)));
}

void train_classifier(train::TrainJob& job, const ClassifierOptions& o, const std::string& name,
                      const MakeModel& make_model) {
  const data::TensorDataset training = load_split(o, true), test = load_split(o, false);
  const std::shared_ptr<nn::Module> model = make_model(training.inputs().size(1), training.inputs().size(2));
  const data::Json facts = data::Json::Object{
      {"program", name}, {"channels", training.inputs().size(1)}, {"size", training.inputs().size(2)}};
  const int64_t of_step = std::max<int64_t>(o.batch * o.parallel.accumulate * job.plan().dp, 1),
                steps = o.steps > 0 ? o.steps : training.size() / of_step * o.epochs;
  train::check_configured(job);
  train::Trainer trainer(
      job, model,
      {.loss = [](const Variable& scores, const Tensor& target) { return cross_entropy(scores, target); },
       .data = data::share(training),
       .evaluate = data::share(test),
       .metrics = {{"accuracy", accuracy}},
       .evaluated = "test",
       .optimizer =
           [&](nn::Module& m) {
             return train::make_optimizer(o.optimizer, {{m.parameters(), o.optimizer.weight_decay}}, steps, job);
           },
       .facts = facts,
       .workers = o.workers});
  trainer.fit();
}

void eval(const std::string& name, const ClassifierOptions& o, const MakeModel& make_model) {
  train::check_single_process("eval");
  train::apply_common_options(o);
  const data::TensorDataset test = load_split(o, false);
  const auto model = make_model(test.inputs().size(1), test.inputs().size(2));
  train::load_model(*model, o.run, o.ema);
  const Device device = device_of(o, train::Team(nullptr));
  model->to(device);
  model->eval();
  const std::vector<double> means = train::means_of(test, 256, device, [&](const data::Example& batch) {
    const Variable scores = (*model)(batch.input);
    return std::vector<Variable>{accuracy(scores, batch.target), cross_entropy(scores, batch.target)};
  });
  train::print_result(
      data::Json::Object{
          {"program", name}, {"test_accuracy", means[0]}, {"test_loss", means[1]}, {"samples", test.size()}},
      o.json);
}

}  // namespace

int classifier_main(int argc, char** argv, const std::string& name, const std::string& about, int64_t epochs,
                    const MakeModel& make_model) {
  ClassifierOptions o;
  o.batch = 64;
  o.epochs = epochs;
  CLI::App app(about, name);
  CLI::App& training = *app.add_subcommand("train", "train a model, and test it after every epoch");
  CLI::App& testing = *app.add_subcommand("eval", "test a trained model");
  train::add_options(training, o);
  train::add_common_options(testing, o, false);
  for (CLI::App* sub : {&training, &testing}) {
    const train::OptionGroup add(*sub);
    add("--data", o.data,
        "'digits' (drawn by this program), or a folder with MNIST's IDX files (.gz or not) or CIFAR-10's binary "
        "batches");
    add("--samples", o.samples, "training samples of 'digits'; a quarter more are drawn for the test",
        train::integer(1, 100'000'000));
  }
  train::add_optimizer_options(training, o.optimizer);
  train::OptionGroup{training}("--workers", o.workers, "threads that make batches ahead", train::integer(0, 1024));
  testing.add_option("run", o.run, "the folder of a run, or of its checkpoints")->required();
  training.callback([&] {
    train::as_usage([&] { train::check_optimizer(o.optimizer, o); });
    train::start(o, train::identity_of(training),
                 [&](train::TrainJob& job) { train_classifier(job, o, name, make_model); });
  });
  testing.callback([&] { eval(name, o, make_model); });
  std::vector<std::string> words(argv, argv + argc);
  add_training_commands_of_extensions(app, words);
  return train::run_cli(app, std::move(words));
}

}  // namespace apps
