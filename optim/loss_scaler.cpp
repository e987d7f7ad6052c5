// The two loss-scaling schemes. See loss_scaler.h.
#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"

namespace lockstep::optim {

namespace {

double saved(const char* name, const std::map<std::string, double>& state, const char* key) {
  const auto found = state.find(key);
  LOCKSTEP_CHECK(found != state.end(), "[", name, "] expected '", key,
                 "' in the saved state, got none; load what its state() returned");
  return found->second;
}

}  // namespace

bool has_overflow(const std::vector<Variable>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const Variable& p) {
    return p.checked_grad("has_overflow").defined() && !all_finite(p.grad());
  });
}

GradScaler::GradScaler(const Options& options) : o_(options), scale_(options.init_scale) {
  LOCKSTEP_CHECK(o_.init_scale > 0, "[GradScaler] expected init_scale > 0, got ", o_.init_scale);
  LOCKSTEP_CHECK(o_.growth_factor > 1, "[GradScaler] expected growth_factor > 1, got ", o_.growth_factor);
  LOCKSTEP_CHECK(o_.backoff_factor > 0 && o_.backoff_factor < 1, "[GradScaler] expected backoff_factor in (0, 1), got ",
                 o_.backoff_factor);
  LOCKSTEP_CHECK(o_.growth_interval > 0, "[GradScaler] expected growth_interval > 0, got ", o_.growth_interval);
}

Variable GradScaler::scale(const Variable& loss) const { return o_.enabled ? mul_scalar(loss, scale_) : loss; }

void GradScaler::unscale(Optimizer& optimizer) {
  if (!o_.enabled) return;
  LOCKSTEP_CHECK(!optimizer.communicates(), "[GradScaler] ", optimizer.name(),
                 " must agree with other ranks about overflow: call its step() with skip_nonfinite and "
                 "grad_scale = 1 / scale_value(), then call update(skipped) of the GradScaler");
  LOCKSTEP_CHECK(!stepped_.count(&optimizer), "[GradScaler] unscale() was called after step(); call update() first");
  LOCKSTEP_CHECK(!unscaled_.count(&optimizer),
                 "[GradScaler] unscale() was called twice for one optimizer before update(); call it once a step");
  // Gradients by device: unscale_() takes tensors of one device, in one kernel.
  std::map<std::pair<int, int>, std::vector<Tensor>> on_device;
  for (const Variable& p : optimizer.parameters()) {
    if (p.checked_grad("GradScaler").defined()) on_device[{int(p.device().type), p.device().index}].push_back(p.grad());
  }
  bool& overflow = unscaled_[&optimizer];
  for (const auto& [device, grads] : on_device) overflow |= !unscale_(grads, 1 / scale_);
}

bool GradScaler::found_overflow() const {
  return std::any_of(unscaled_.begin(), unscaled_.end(), [](const auto& one) { return one.second; });
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!o_.enabled) {
    optimizer.step();
    return true;
  }
  LOCKSTEP_CHECK(
      stepped_.count(&optimizer) == 0,
      "[GradScaler] step() was called twice for one optimizer before update(); call update() after each step()");
  if (!unscaled_.count(&optimizer)) unscale(optimizer);
  stepped_.insert(&optimizer);
  const bool overflow = unscaled_.at(&optimizer);
  if (!overflow) optimizer.step();
  return !overflow;
}

void GradScaler::update() {
  if (!o_.enabled) return;
  LOCKSTEP_CHECK(!unscaled_.empty(),
                 "[GradScaler] update() needs an optimizer that was unscaled or stepped before; call step() first");
  update(found_overflow());
}

void GradScaler::update(bool found_overflow) {
  if (!o_.enabled) return;
  if (found_overflow) {
    scale_ *= o_.backoff_factor;
    tracker_ = 0;
  } else if (++tracker_ == o_.growth_interval) {
    const double grown = scale_ * o_.growth_factor;
    if (std::isfinite(float(grown))) scale_ = grown;
    tracker_ = 0;
  }
  unscaled_.clear();
  stepped_.clear();
}

std::map<std::string, double> GradScaler::state() const {
  return {{"scale", scale_}, {"growth_tracker", double(tracker_)}};
}
void GradScaler::load_state(const std::map<std::string, double>& state) {
  const double scale = saved("GradScaler", state, "scale"), tracker = saved("GradScaler", state, "growth_tracker");
  scale_ = scale, tracker_ = int64_t(tracker);
}

DynamicLossScaler::DynamicLossScaler(const Options& options)
    : o_(options), scale_(options.init_scale), left_(options.hysteresis) {
  LOCKSTEP_CHECK(o_.init_scale > 0 && std::isfinite(o_.init_scale),
                 "[DynamicLossScaler] expected a finite init_scale > 0, got ", o_.init_scale);
  LOCKSTEP_CHECK(o_.scale_factor > 1, "[DynamicLossScaler] expected scale_factor > 1, got ", o_.scale_factor);
  LOCKSTEP_CHECK(o_.scale_window > 0, "[DynamicLossScaler] expected scale_window > 0, got ", o_.scale_window);
  LOCKSTEP_CHECK(o_.min_scale > 0, "[DynamicLossScaler] expected min_scale > 0, got ", o_.min_scale);
  LOCKSTEP_CHECK(o_.hysteresis >= 1, "[DynamicLossScaler] expected hysteresis >= 1, got ", o_.hysteresis);
}

void DynamicLossScaler::update(bool overflow) {
  if (overflow) {
    if (left_ == 1) {
      LOCKSTEP_CHECK(scale_ > o_.min_scale || !o_.raise_error_at_min_scale,
                     "[DynamicLossScaler] a gradient overflowed although the loss scale is already at its minimum ",
                     o_.min_scale,
                     "; look for a NaN or infinity in the model (AnomalyMode names the operation), lower the learning "
                     "rate, or train in bf16");
      scale_ = std::max(scale_ / o_.scale_factor, o_.min_scale);
    } else {
      --left_;
    }
    last_overflow_ = iteration_;
  } else {
    const int64_t clean = iteration_ - last_overflow_ - 1;
    const bool grow = clean > 0 && clean % o_.scale_window == 0;
    if (o_.consecutive_hysteresis || grow) left_ = o_.hysteresis;
    if (grow) scale_ *= o_.scale_factor;
  }
  ++iteration_;
}

std::map<std::string, double> DynamicLossScaler::state() const {
  return {{"scale", scale_},
          {"iteration", double(iteration_)},
          {"last_overflow", double(last_overflow_)},
          {"hysteresis", double(left_)}};
}
void DynamicLossScaler::load_state(const std::map<std::string, double>& state) {
  const auto at = [&](const char* key) { return saved("DynamicLossScaler", state, key); };
  DynamicLossScaler loaded = *this;
  loaded.scale_ = at("scale");
  loaded.iteration_ = int64_t(at("iteration")), loaded.last_overflow_ = int64_t(at("last_overflow"));
  loaded.left_ = int64_t(at("hysteresis"));
  *this = loaded;
}

}  // namespace lockstep::optim
