// Construction and forward of Linear, Mlp, Embedding and Head. See linear.h.
#include "nn/linear.h"

#include <cmath>

#include "nn/init.h"

namespace lockstep::nn {

Linear::Linear(const Options& o) {
  LOCKSTEP_CHECK(o.in >= 0 && o.out >= 0, "[Linear] expected sizes >= 0, got in ", o.in, " and out ", o.out);
  weight = parameter({o.out, o.in});
  init::kaiming_uniform(weight, std::sqrt(5.0));
  if (!o.bias) return;
  bias = parameter({o.out});
  const double bound = o.in > 0 ? 1 / std::sqrt(double(o.in)) : 0;
  init::uniform(bias, -bound, bound);
}

Variable Linear::forward(const Variable& x, Activation activation) {
  if (attached.is_empty()) return linear(x, weight, bias, activation);
  const bool training = is_training() && NoGrad::grad_enabled();
  if (!attached.addition) return attached.product(x, weight, bias, activation, training);
  const Variable y = attached.product(x, weight, bias, Activation::none, training), more = attached.addition->call(x);
  LOCKSTEP_CHECK(y.shape() == more.shape(), "[Linear] expected an adapter that returns ", y.shape(), ", got ",
                 more.shape(), "; was the layer sharded by a rule other than the model's own cut? use that cut");
  return activated(add(y, more), activation);
}

void Linear::fields(Fields& f) {
  attached.store ? attached.store->fields(f) : void(f("weight", weight));
  f("bias", bias);
  if (attached.addition) f(attached.addition_name, *attached.addition);
}

std::string Linear::options() const {
  return str("in ", weight.size(1), ", out ", weight.size(0), bias.defined() ? "" : ", no bias");
}

Mlp::Mlp(const Options& options)
    : o(options),
      gate(o.kind == nn::FeedForward::swiglu
               ? std::optional<Linear>(std::in_place, Linear::Options{.in = o.width, .out = o.inner, .bias = o.bias})
               : std::nullopt),
      up({.in = o.width, .out = o.inner, .bias = o.bias}),
      down({.in = o.inner, .out = o.width, .bias = o.bias}) {}

Embedding::Embedding(const Options& o) : padding_index(o.padding_index) {
  LOCKSTEP_CHECK(o.num > 0 && o.dim > 0, "[Embedding] expected sizes > 0, got num ", o.num, " and dim ", o.dim);
  LOCKSTEP_CHECK(o.padding_index < o.num, "[Embedding] expected padding_index below ", o.num, ", got ",
                 o.padding_index);
  weight = parameter({o.num, o.dim});
  init::normal(weight);
  if (padding_index >= 0)
    init::apply(
        weight, [row = padding_index](const Tensor& w) { w[row].zero_(); }, 0, true);
}

std::string Embedding::options() const { return str("num ", weight.size(0), ", dim ", weight.size(1)); }

Head::Head(const Options& o) {
  LOCKSTEP_CHECK(o.num > 0 && o.dim > 0, "[Head] expected sizes > 0, got num ", o.num, " and dim ", o.dim);
  weight = parameter({o.num, o.dim});
  init::normal(weight, 0, 0.02);
}

Variable Head::scores(const Variable& x) {
  if (!attached.is_empty()) return attached.product(x, weight, {}, Activation::none, false);
  return x.device().is_cpu() ? linear(x, weight) : linear_padded(x, weight);
}

Variable Head::forward(const Variable& x, const Tensor& targets) {
  const bool replaced = !attached.is_empty() || entropy || gather;
  const int64_t limit = rows_at_once > 0 ? rows_at_once : linear_cross_entropy_rows(weight.size(0));
  if (replaced || (x.device().is_cpu() && targets.numel() <= limit)) return loss(scores(x), targets);
  return linear_cross_entropy(x, weight, targets, {}, rows_at_once);
}

std::string Head::options() const { return str("num ", weight.size(0), ", dim ", weight.size(1)); }

}  // namespace lockstep::nn
