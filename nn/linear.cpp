#include "nn/linear.h"

#include <cmath>

#include "nn/build_empty.h"
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

Variable Linear::adapted(const Variable& x, Activation activation) {
  const Variable y = base(x, Activation::none), more = adapter->call(x);
  LOCKSTEP_CHECK(y.shape() == more.shape(), "[Linear] expected an adapter that gives ", y.shape(), ", got ",
                 more.shape(), "; was the layer cut by a rule that is not the model's own?");
  return activated(add(y, more), activation);
}

Variable activated(const Variable& x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return relu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu_erf: return gelu_erf(x);
    case Activation::silu: return silu(x);
  }
  fail("[activated] expected a known activation");
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

std::string Head::options() const { return str("num ", weight.size(0), ", dim ", weight.size(1)); }

}  // namespace lockstep::nn
