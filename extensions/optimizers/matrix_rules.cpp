// LAMB scales the step by a ratio of norms, Muon orthogonalises it, Adafactor keeps averages of rows and columns.
#include "extensions/optimizers/matrix_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "extensions/optimizers/composed_rules.h"
#include "optim/rules.h"

namespace lockstep::optim {

namespace {

/// Approximates the nearest semi-orthogonal matrix by a quintic Newton-Schulz iteration, whose coefficients move all
/// singular values towards 1 without a decomposition.
Tensor orthogonalize(const Tensor& g, int steps) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315, eps = 1e-7;
  const bool tall = g.size(0) > g.size(1);
  Tensor x = tall ? g.t().contiguous() : g;
  x = div_scalar(x, std::max(norm(x).item(), eps));
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = matmul(x, x.t());
    const Tensor polynomial = addmm(gram, gram, gram, b, c);  // b A + c A A
    x = addmm(x, polynomial, x, a, 1);                        // a X + (b A + c A A) X
  }
  return tall ? x.t().contiguous() : x;
}

}  // namespace

std::vector<OptionRange> LAMBOptions::table() {
  return adam_table(*this, {{"min_trust", &min_trust}, {"max_trust", &max_trust, unchecked}});
}
void LAMBOptions::check(const char* op) const {
  LOCKSTEP_CHECK(max_trust >= min_trust, "[", op, "] expected max_trust >= min_trust, got ", max_trust, " < ",
                 min_trust);
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(LAMB);
void LAMB::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  lamb_update(options_[group], p, grad, state, low, grad_scale);
}

double lamb_update(const LAMBOptions& o, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                   double grad_scale) {
  const Tensor g = signed_grad(grad, o.maximize, grad_scale);
  Tensor& m = state.zeros("exp_avg", p);
  Tensor& v = state.zeros("exp_avg_sq", p);
  add_(mul_scalar_(m, o.beta1), g, 1 - o.beta1);
  add_(mul_scalar_(v, o.beta2), square(g), 1 - o.beta2);
  const double bias1 = bias_correction(o.bias_correction, o.beta1, state.step),
               bias2 = bias_correction(o.bias_correction, o.beta2, state.step);
  const Tensor direction = div(div_scalar(m, bias1), add_scalar_(sqrt_(div_scalar(v, bias2)), o.eps));
  if (o.weight_decay != 0) add_(direction, p, o.weight_decay);
  const double size = norm(p).item(), step = norm(direction).item();
  const double trust = size > 0 && step > 0 ? std::clamp(size / step, o.min_trust, o.max_trust) : 1;
  add_(p, direction, -o.lr * trust);
  round_into(low, p);
  return trust;
}

std::vector<OptionRange> MuonOptions::table() {
  return {{"lr", &lr},
          {"momentum", &momentum, 0, 1},
          {"weight_decay", &weight_decay},
          {"newton_schulz_steps", &newton_schulz_steps, 1}};
}
void MuonOptions::check(const char* op) const {
  LOCKSTEP_CHECK(adjust_lr_fn == "original" || adjust_lr_fn == "match_rms_adamw", "[", op,
                 "] expected adjust_lr_fn 'original' or 'match_rms_adamw', got '", adjust_lr_fn, "'");
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Muon);
void Muon::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  LOCKSTEP_CHECK(p.dim() == 2, "[Muon] expected matrices, got a parameter of shape ", p.shape(),
                 "; give parameters that are not matrices to AdamW");
  const MuonOptions& o = options_[group];
  const Tensor g = signed_grad(grad, o.maximize, grad_scale);
  Tensor& momentum = state.zeros("momentum_buffer", p);
  add_(mul_scalar_(momentum, o.momentum), g, 1 - o.momentum);
  const Tensor direction =
      orthogonalize(o.nesterov ? lerp(g, momentum, o.momentum) : momentum, int(o.newton_schulz_steps));
  const double rows = double(p.size(0)), columns = double(p.size(1));
  const double shape_factor = o.adjust_lr_fn == "original" ? std::sqrt(std::max(1.0, rows / columns))
                                                           : 0.2 * std::sqrt(std::max(rows, columns));
  if (o.weight_decay != 0) mul_scalar_(p, 1 - o.lr * o.weight_decay);
  add_(p, direction, -o.lr * shape_factor);
  round_into(low, p);
}

std::vector<OptionRange> AdafactorOptions::table() {
  return {{"lr", &lr},     {"weight_decay", &weight_decay},          {"eps1", &eps1},
          {"eps2", &eps2}, {"beta2_decay", &beta2_decay, unchecked}, {"d", &d, unchecked}};
}
void AdafactorOptions::check(const char* op) const {
  LOCKSTEP_CHECK(beta2_decay <= 0, "[", op, "] expected beta2_decay <= 0, got ", beta2_decay);
  LOCKSTEP_CHECK(d >= 1, "[", op, "] expected d >= 1, got ", d);
}
Shape Adafactor::state_shape(const std::string& key, const Shape& parameter) const {
  const bool rows = key.ends_with("row_var");
  if (!rows && !key.ends_with("col_var")) return parameter;
  Shape shape = parameter;
  shape[shape.rank() - (rows ? 1 : 2)] = 1;
  return shape;
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adafactor);
void Adafactor::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                       double grad_scale) {
  const AdafactorOptions& o = options_[group];
  const double precision =
      p.dtype() == f64 ? std::numeric_limits<double>::epsilon() : double(std::numeric_limits<float>::epsilon());
  const double eps1 = o.eps1 == 0 ? precision : o.eps1, root_of_size = std::sqrt(double(p.numel()));
  const double newest = std::pow(double(state.step), o.beta2_decay);
  const double size = o.scale_parameter ? std::max(o.eps2, norm(p).item() / root_of_size) : 1;
  const double alpha = size * (o.relative_step ? std::min(o.lr, 1 / std::sqrt(double(state.step))) : o.lr);
  if (o.weight_decay != 0) mul_scalar_(p, 1 - o.lr * o.weight_decay);
  const Tensor g = signed_grad(grad, o.maximize, grad_scale), squares = square(g);
  const auto follow = [&](const char* key, const Tensor& now) -> const Tensor& {
    Tensor& kept = state.zeros(key, now);
    add_(kept, sub(now, kept), newest);
    return kept;
  };
  Tensor estimate;
  if (p.dim() > 1) {
    const Tensor &rows = follow("row_var", mean(squares, {-1}, true)),
                 &columns = follow("col_var", mean(squares, {-2}, true));
    estimate = div(mul(rows, columns), clamp(mean(rows, {-2}, true), eps1, INFINITY));
  } else {
    estimate = follow("variance", squares).clone();
  }
  const Tensor step = div(g, sqrt_(clamp_(estimate, eps1 * eps1, INFINITY)));
  add_(p, step, -alpha / std::max(1.0, norm(step).item() / (root_of_size * o.d)));
  round_into(low, p);
}

}  // namespace lockstep::optim
