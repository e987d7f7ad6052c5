// WeightAverage, and update_bn(), which computes batch norm's statistics for averaged weights. See weight_average.h.
#include "extensions/optimizers/weight_average.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/at_end.h"
#include "nn/norm.h"
#include "tensor/ops.h"

namespace lockstep {

namespace {

using optim::OtherValues;

/// The buffers to swap when the value of `leaf` (a weight) is restored. The result is an expired pointer unless this
/// thread has replaced the value. The owner of the list must hold the leaf too, because the leaf's address is the key.
std::weak_ptr<OtherValues>& other_values(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace

namespace optim {

WeightAverage::WeightAverage(std::vector<Variable> parameters, double decay)
    : parameters_(std::move(parameters)), buffers_(std::make_shared<OtherValues>()), decay_(decay) {
  LOCKSTEP_CHECK(!parameters_.empty(),
                 "[WeightAverage] expected at least one parameter, got an empty list; pass net.parameters()");
  LOCKSTEP_CHECK(decay >= 0 && decay < 1, "[WeightAverage] expected decay in [0, 1), got ", decay);
  for (const Variable& p : parameters_) add(p);
}
WeightAverage::WeightAverage(nn::Module& model, const WeightAverageOptions& options)
    : WeightAverage(model.parameters(), options.decay) {
  if (!options.use_buffers) return;
  for (const nn::NamedBuffer& buffer : model.named_buffers()) {
    if (!is_floating(buffer.tensor.dtype())) continue;
    buffers_->averaged.push_back(buffer.tensor);
    add(parameters_.emplace_back(buffer.tensor));
  }
}
void WeightAverage::add(const Variable& averaged) {
  LOCKSTEP_CHECK(is_floating(averaged.dtype()), "[WeightAverage] expected floating parameters, got ", averaged.dtype(),
                 "; leave that one out");
  averages_.push_back(zeros(averaged.shape(), {averaged.dtype() == f64 ? f64 : f32, averaged.device()}));
}
void WeightAverage::update() {
  LOCKSTEP_CHECK(own_.empty(), "[WeightAverage] update() while the averages are swapped in; call swap() again first");
  const NoGrad no_grad;
  const double part = updates_ == 0 ? 1 : decay_ > 0 ? 1 - decay_ : 1 / double(updates_ + 1);
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor now = parameters_[i].tensor().to(averages_[i].dtype());
    if (updates_ == 0) averages_[i].copy_(now);
    else add_(averages_[i], sub(now, averages_[i]), part);
  }
  ++updates_;
}
void WeightAverage::swap() {
  LOCKSTEP_CHECK(updates_ > 0, "[WeightAverage] swap() without an average; call update() first");
  const NoGrad no_grad;
  const bool comes_in = own_.empty();
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor& parameter = parameters_[i].tensor();
    if (comes_in) own_.push_back(parameter.clone());
    else follow(averages_[i], parameter);  // keeps an f32 average that still rounds to its 16-bit parameter
    parameter.copy_(comes_in ? averages_[i] : own_[i]);
    other_values(parameters_[i]) = comes_in ? buffers_ : nullptr;
  }
  if (!comes_in) own_.clear();
  for (auto& [buffer, other] : buffers_->pairs) {
    const Tensor now = buffer.clone();
    buffer.copy_(other);
    other = now;
  }
}
OptimizerState WeightAverage::state() const {
  OptimizerState saved;
  saved.numbers["updates"] = double(updates_);
  for (size_t i = 0; i < averages_.size(); ++i)
    saved.tensors.emplace_back("average." + std::to_string(i), averages_[i]);
  return saved;
}
void WeightAverage::load_state(const OptimizerState& saved) {
  LOCKSTEP_CHECK(saved.numbers.count("updates") && saved.tensors.size() == averages_.size(),
                 "[WeightAverage] expected the number 'updates' and ", averages_.size(),
                 " averages in the saved state, got ", saved.tensors.size(),
                 "; load what state() returned for the same model");
  LOCKSTEP_CHECK(own_.empty(),
                 "[WeightAverage] load_state() while the averages are swapped in; call swap() again first");
  for (size_t i = 0; i < averages_.size(); ++i)
    LOCKSTEP_CHECK(saved.tensors[i].second.shape() == averages_[i].shape(), "[WeightAverage] expected '",
                   saved.tensors[i].first, "' of shape ", averages_[i].shape(), ", got ",
                   saved.tensors[i].second.shape(), "; load a state of the same model");
  for (size_t i = 0; i < averages_.size(); ++i) averages_[i].copy_(saved.tensors[i].second);
  updates_ = int64_t(saved.numbers.at("updates"));
}

}  // namespace optim

namespace nn {

void update_bn(Module& model, const std::function<void()>& pass) {
  std::vector<std::pair<Module*, bool>> modes;
  std::vector<std::pair<BatchNorm*, std::optional<double>>> momenta;
  // In a scope of optim::WeightAverage, the current statistics are saved with the buffers that its end restores.
  std::shared_ptr<OtherValues> saved_values;
  for (const Variable& p : model.parameters())
    if (!saved_values) saved_values = other_values(p).lock();
  for (const auto& [name, module] : model.named_modules()) {
    modes.emplace_back(module, module->is_training());
    auto* norm = dynamic_cast<BatchNorm*>(module);
    if (!norm || !norm->o.track) continue;
    for (const Tensor& buffer : {norm->running_mean, norm->running_var, norm->num_batches_tracked}) {
      const auto is_same = [&](const Tensor& one) { return one.storage() == buffer.storage(); };
      if (saved_values && std::none_of(saved_values->averaged.begin(), saved_values->averaged.end(), is_same) &&
          std::none_of(saved_values->pairs.begin(), saved_values->pairs.end(),
                       [&](const auto& one) { return is_same(one.first); }))
        saved_values->pairs.emplace_back(buffer, buffer.clone());
    }
    momenta.emplace_back(norm, norm->o.momentum);
    norm->o.momentum.reset();
    norm->running_mean.zero_();
    norm->running_var.fill_(1);
    norm->num_batches_tracked.zero_();
  }
  if (momenta.empty()) return;
  const AtEnd restores([&] {
    // train() also sets the modules below `module`. These come later in `modes`, and are then set to their own mode.
    for (const auto& [module, training] : modes) module->train(training);
    for (const auto& [norm, momentum] : momenta) norm->o.momentum = momentum;
  });
  model.train();
  const NoGrad no_grad;
  pass();
}

}  // namespace nn

}  // namespace lockstep
