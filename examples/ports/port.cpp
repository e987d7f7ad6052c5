// Options, random numbers, data and reports that the programs in this folder share. See port.h.
#include "examples/ports/port.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <numbers>

namespace ports {

namespace ls = lockstep;
using ls::Tensor;

namespace {

/// Returns pseudo-random number i of series `key`, in [0, 1).
double number(double key, int64_t i) {
  const double x = std::sin(double(i) * 12.9898 + key * 78.233 + 1) * 43758.5453;
  return x - std::floor(x);
}

template <class Fn> Tensor filled(const ls::Shape& shape, const Fn& fn) {
  std::vector<float> values(size_t(ls::numel_of(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(fn(int64_t(i)));
  return Tensor::from(values, shape);
}

}  // namespace

void Run::start(ls::nn::Module& model) const {
  if (!golden) return;
  for (auto& [name, parameter, is_table, keeps_dtype] : model.named_parameters()) {
    if (parameter.dim() < 2 && name.ends_with("weight")) continue;  // weight of a norm: stays 1
    double key = 0;
    for (size_t i = 0; i < name.size(); ++i) key += double(name[i]) * double(i + 1);
    const double fan = parameter.dim() < 2 ? 100 : double(parameter.numel() / parameter.size(0));
    parameter.tensor().copy_(
        filled(parameter.shape(), [&](int64_t i) { return (2 * number(key, i) - 1) / std::sqrt(fan); }));
  }
}

Tensor Run::uniform(const ls::Shape& shape) {
  if (!golden) return ls::rand(shape);
  const double key = double(++sampled_);
  return filled(shape, [&](int64_t i) { return number(key, i); });
}

Tensor Run::normal(const ls::Shape& shape) {
  if (!golden) return ls::randn(shape);
  const double key = double(++sampled_);
  return filled(shape, [&](int64_t i) {
    return std::sqrt(-2 * std::log(1 - number(key, i))) * std::cos(2 * std::numbers::pi * number(key + 0.5, i));
  });
}

Run::Digits Run::digits(int64_t count) {
  if (golden) {
    Tensor images = uniform({count, 1, 28, 28});
    std::vector<int64_t> labels(static_cast<size_t>(count));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = int64_t(i) * 7 % 10;
    return {images, Tensor::from(labels, {count})};
  }
  static const ls::data::TensorDataset all = ls::data::to_tensors(ls::data::SyntheticDigits(4096, 1));
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t& index : indices) index = digits_used_++ % all.size();
  const ls::data::Example batch = *all.get_batch(indices);
  return {batch.input, batch.target};
}

void Run::report(double loss) {
  if (golden || step_ == 1 || step_ % std::max<int64_t>(1, steps / 10) == 0)
    std::cout << "step " << step_ << " loss " << std::setprecision(golden ? 9 : 5) << loss << std::endl;
  if (step_ <= steps - std::max<int64_t>(1, steps / 10)) return;
  sum_ += loss;
  ++counted_;
}

int run(int argc, char** argv, const std::string& about, const Options& defaults,
        const std::function<void(Run&)>& program, const std::vector<std::string>& models) {
  CLI::App app(about);
  Run run(defaults);
  uint64_t seed = 1;
  app.add_option("--steps", run.steps, "training steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", run.batch, "samples per step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lr", run.lr, "learning rate")->capture_default_str();
  app.add_option("--seed", seed, "random seed")->capture_default_str();
  if (!models.empty()) {
    run.model = models[0];
    app.add_option("--model", run.model, "model to train")->check(CLI::IsMember(models))->capture_default_str();
  }
  app.add_flag("--golden", run.golden,
               "initial weights and random numbers from formulas, to compare with the same program in PyTorch");
  CLI11_PARSE(app, argc, argv);
  ls::manual_seed(seed);
  program(run);
  std::cout << "last loss " << run.sum_ / double(std::max<int64_t>(1, run.counted_)) << "\n";
  return 0;
}

}  // namespace ports
