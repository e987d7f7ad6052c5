// L-BFGS (Nocedal, 1980). The line search is algorithms 3.5 and 3.6 of Nocedal and Wright, Numerical Optimization
// (2006), with PyTorch's choice of trial points.
#include "extensions/optimizers/lbfgs.h"

#include <algorithm>
#include <cmath>

#include "autograd/agreed.h"
#include "autograd/ops.h"
#include "optim/rules.h"

namespace lockstep::optim {

namespace {

double dot(const Tensor& a, const Tensor& b) { return sum(mul(a, b)).item(); }
double largest(const Tensor& x) { return amax(abs(x)).item(); }

/// Returns the position in [low, high] of the minimum of the cubic that has the losses and slopes of points p and q.
template <class Point> double least_of_cubic(const Point& p, const Point& q, double low, double high) {
  const Point &a = p.at <= q.at ? p : q, &b = p.at <= q.at ? q : p;
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at), square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double at = b.at - (b.at - a.at) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2));
  return std::min(std::max(at, low), high);
}

[[noreturn]] void refuse_step() {
  fail(
      "[LBFGS] expected step(loss), as it evaluates the loss many times a step; ZeRO, engines and programs provide "
      "gradients only: call step(loss) in your own loop, or use AdamW");
}

}  // namespace

std::vector<OptionRange> LBFGSOptions::table() {
  return {{"lr", &lr},
          {"max_iter", &max_iter, 1},
          {"max_eval", &max_eval},
          {"tolerance_grad", &tolerance_grad, unchecked},
          {"tolerance_change", &tolerance_change, unchecked},
          {"history_size", &history_size, 1}};
}

LBFGS::LBFGS(std::vector<Variable> parameters, const LBFGSOptions& options) {
  for (const Variable& p : parameters)
    LOCKSTEP_CHECK(p.defined() && size_of(p.dtype()) >= 4 && p.dtype() == parameters[0].dtype(),
                   "[LBFGS] expected parameters all of f32 or all of f64, got ",
                   p.defined() ? str(p.dtype(), "; convert them with Module::to()") : "an undefined one; leave it out");
  add_group(std::move(parameters), options);
}
void LBFGS::step(double) { refuse_step(); }
void LBFGS::update(int, Tensor&, const Tensor&, ParameterState&, Tensor&, double) { refuse_step(); }

Tensor LBFGS::values() const {
  std::vector<Tensor> all;
  for (const Variable& p : parameters(0)) all.push_back(p.tensor().reshape({p.numel()}));
  return cat(all, 0);
}
void LBFGS::set_values(const Tensor& flat) {
  int64_t at = 0;
  for (Variable p : parameters(0)) {
    Tensor tensor = p.tensor();
    tensor.copy_(flat.narrow(0, at, p.numel()).view(p.shape()));
    tensor.storage()->bump_version(name());
    at += p.numel();
  }
}

LBFGS::Point LBFGS::evaluate(const std::function<Variable()>& loss) {
  zero_grad();
  Point found;
  {
    const EnableGrad recording;
    const Variable value = loss();
    value.backward();
    found.loss = agreed(parameters(0), value.item(), "loss of LBFGS");
  }
  std::vector<Tensor> all;
  for (const Variable& p : parameters(0)) {
    const Tensor grad = p.checked_grad(name());
    all.push_back(grad.defined() ? grad.reshape({p.numel()})
                                 : zeros({p.numel()}, {.dtype = p.dtype(), .device = p.tensor().device()}));
  }
  found.grad = cat(all, 0);
  ++evaluations_;
  return found;
}

void LBFGS::new_direction(const Tensor& grad) {
  if (++iterations_ == 1) {
    direction_ = neg(grad);
    return;
  }
  const Tensor change = sub(grad, grad_), step = mul_scalar(direction_, at_);
  const double along = dot(change, step);
  if (along > 1e-10) {
    if (int64_t(changes_.size()) == int64_t(options_[0].history_size)) {
      changes_.erase(changes_.begin());
      steps_.erase(steps_.begin());
    }
    changes_.push_back(change);
    steps_.push_back(step);
    scale_ = along / dot(change, change);
  }
  Tensor q = neg(grad);
  std::vector<double> ratios(changes_.size()), taken(changes_.size());
  for (size_t i = changes_.size(); i-- > 0;) {
    ratios[i] = 1 / dot(changes_[i], steps_[i]);
    taken[i] = dot(steps_[i], q) * ratios[i];
    add_(q, changes_[i], -taken[i]);
  }
  mul_scalar_(q, scale_);
  for (size_t i = 0; i < changes_.size(); ++i) add_(q, steps_[i], taken[i] - dot(changes_[i], q) * ratios[i]);
  direction_ = q;
}

double LBFGS::step(const std::function<Variable()>& loss) {
  LOCKSTEP_CHECK(group_count() == 1, "[LBFGS] expected one group of parameters, got ", group_count(),
                 "; give all parameters to the constructor");
  const NoGrad no_grad;
  const LBFGSOptions& o = options_[0];
  std::vector<bool> trained;
  for (const Variable& p : parameters(0)) trained.push_back(p.requires_grad());
  if (!trained_.empty() && trained != trained_) {  // old directions would move parameters that are frozen now
    iterations_ = 0;
    changes_.clear(), steps_.clear();
  }
  trained_ = trained;
  const auto max_iterations = int64_t(o.max_iter),
             max_evaluations = o.max_eval > 0 ? int64_t(o.max_eval) : max_iterations * 5 / 4;
  const int64_t before = evaluations_;
  Point now = evaluate(loss);
  const double first = now.loss;
  if (largest(now.grad) <= o.tolerance_grad) return first;
  for (int64_t i = 1; i <= max_iterations; ++i) {
    new_direction(now.grad);
    grad_ = now.grad;
    const double last = now.loss;
    at_ = iterations_ == 1 ? std::min(1.0, 1 / sum(abs(now.grad)).item()) * o.lr : o.lr;
    now.at = 0;
    now.slope = dot(now.grad, direction_);
    if (now.slope > -o.tolerance_change) break;
    const Tensor start = values();
    const auto evaluate_at = [&](double at) {
      set_values(add_(mul_scalar(direction_, at), start));
      Point found = evaluate(loss);
      found.at = at;
      found.slope = dot(found.grad, direction_);
      return found;
    };
    if (o.line_search) {
      now = line_search(evaluate_at, direction_, now, at_);
      at_ = now.at;
    } else if (i != max_iterations) {
      now = evaluate_at(at_);
    }
    if (o.line_search || i == max_iterations) set_values(add_(mul_scalar(direction_, at_), start));
    if (evaluations_ - before >= max_evaluations || largest(now.grad) <= o.tolerance_grad ||
        largest(direction_) * at_ <= o.tolerance_change || std::abs(now.loss - last) < o.tolerance_change)
      break;
  }
  return first;
}

/// Finds a point with sufficient decrease (Armijo) and small slope (curvature condition): extends the interval until it
/// brackets such a point, then narrows it.
LBFGS::Point LBFGS::line_search(const std::function<Point(double)>& evaluate_at, const Tensor& direction, Point start,
                                double at) const {
  constexpr double armijo = 1e-4, curvature = 0.9;
  constexpr int max_iterations = 25;
  const double length = largest(direction);
  const auto is_high = [&](const Point& p) { return p.loss > start.loss + armijo * p.at * start.slope; };
  const auto is_flat = [&](const Point& p) { return std::abs(p.slope) <= -curvature * start.slope; };
  Point last = start, now = evaluate_at(at);
  int i = 0;
  for (; i < max_iterations; ++i) {
    if (is_high(now) || (i > 1 && now.loss >= last.loss)) break;
    if (is_flat(now)) return now;
    if (now.slope >= 0) break;
    const double next = least_of_cubic(last, now, now.at + 0.01 * (now.at - last.at), now.at * 10);
    last = std::exchange(now, evaluate_at(next));
  }
  if (i == max_iterations) last = start;
  Point low = last, high = now;
  if (now.loss < last.loss) std::swap(low, high);
  bool slow = false;  // true: the last trial came close to an end of the bracket, so the bracket shrank little
  for (; i < max_iterations && std::abs(high.at - low.at) * length >= options_[0].tolerance_change; ++i) {
    const double left = std::min(low.at, high.at), right = std::max(low.at, high.at), margin = 0.1 * (right - left);
    double next = least_of_cubic(low, high, left, right);
    if (std::min(right - next, next - left) < margin) {
      const bool leave = slow || next >= right || next <= left;
      if (leave) next = std::abs(next - right) < std::abs(next - left) ? right - margin : left + margin;
      slow = !leave;
    } else {
      slow = false;
    }
    now = evaluate_at(next);
    if (is_high(now) || now.loss >= low.loss) {
      high = now;
      if (high.loss < low.loss) std::swap(low, high);
      continue;
    }
    const bool done = is_flat(now);
    if (!done && now.slope * (high.at - low.at) >= 0) high = low;
    low = now;
    if (done) break;
  }
  return low;
}

OptimizerState LBFGS::state() const {
  OptimizerState saved = Optimizer::state();
  saved.numbers["lbfgs.scale"] = scale_;
  saved.numbers["lbfgs.at"] = at_;
  saved.numbers["lbfgs.iterations"] = double(iterations_);
  saved.numbers["lbfgs.evaluations"] = double(evaluations_);
  if (iterations_ == 0) return saved;
  saved.tensors.emplace_back("lbfgs.direction", direction_);
  saved.tensors.emplace_back("lbfgs.grad", grad_);
  for (size_t i = 0; i < changes_.size(); ++i) {
    saved.tensors.emplace_back("lbfgs.change", changes_[i]);
    saved.tensors.emplace_back("lbfgs.step", steps_[i]);
  }
  return saved;
}
void LBFGS::load_state(const OptimizerState& saved) {
  OptimizerState rest;
  std::map<std::string, std::vector<Tensor>> own;
  std::map<std::string, double> numbers;
  const int64_t size = values().numel();
  for (const auto& [key, tensor] : saved.tensors) {
    LOCKSTEP_CHECK(key.starts_with("lbfgs.") && tensor.shape() == Shape{size}, "[LBFGS] expected '", key,
                   "' to begin with 'lbfgs.' and to have shape ", Shape{size}, ", got ", tensor.shape(),
                   "; load a state that state() of an LBFGS for the same model returned");
    own[key].push_back(tensor.clone());
  }
  for (const auto& [key, value] : saved.numbers) (key.starts_with("lbfgs.") ? numbers : rest.numbers)[key] = value;
  for (const char* key : {"lbfgs.scale", "lbfgs.at", "lbfgs.iterations", "lbfgs.evaluations"})
    LOCKSTEP_CHECK(numbers.count(key), "[LBFGS] expected '", key,
                   "' in the saved state, got none; load a state that state() of an LBFGS returned");
  Optimizer::load_state(rest);
  changes_ = own["lbfgs.change"], steps_ = own["lbfgs.step"];
  direction_ = own["lbfgs.direction"].empty() ? Tensor() : own["lbfgs.direction"][0];
  grad_ = own["lbfgs.grad"].empty() ? Tensor() : own["lbfgs.grad"][0];
  scale_ = numbers["lbfgs.scale"], at_ = numbers["lbfgs.at"];
  iterations_ = int64_t(numbers["lbfgs.iterations"]), evaluations_ = int64_t(numbers["lbfgs.evaluations"]);
}

}  // namespace lockstep::optim
