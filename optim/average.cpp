#include "optim/average.h"

#include "autograd/stand_in.h"
#include "tensor/ops.h"

namespace lockstep::optim {

WeightAverage::WeightAverage(std::vector<Variable> parameters, double decay)
    : parameters_(std::move(parameters)), buffers_(std::make_shared<OtherValues>()), decay_(decay) {
  LOCKSTEP_CHECK(!parameters_.empty(),
                 "[WeightAverage] expected at least one parameter, got an empty list; pass net.parameters()");
  LOCKSTEP_CHECK(decay >= 0 && decay < 1, "[WeightAverage] expected decay in [0, 1), got ", decay);
  for (const Variable& p : parameters_) {
    LOCKSTEP_CHECK(is_floating(p.dtype()), "[WeightAverage] expected floating parameters, got ", p.dtype(),
                   "; leave that one out");
    averages_.push_back(zeros(p.shape(), {.dtype = p.dtype() == f64 ? f64 : f32, .device = p.tensor().device()}));
  }
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
    stand_in(parameters_[i]) = comes_in ? buffers_ : nullptr;
  }
  if (!comes_in) own_.clear();
  for (auto& [buffer, other] : *buffers_) {
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

}  // namespace lockstep::optim
