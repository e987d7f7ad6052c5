// Parameter initialisation. See init.h.
#include "nn/init.h"

#include <cmath>

#include "tensor/ops.h"

namespace lockstep::nn::init {

namespace {

double kaiming_gain(double a) { return std::sqrt(2 / (1 + a * a)); }

}  // namespace

void uniform(const Variable& w, double low, double high) {
  apply(
      w, [=](const Tensor& x) { uniform_(x, low, high); }, 1);
}
void normal(const Variable& w, double mean, double deviation) {
  apply(
      w, [=](const Tensor& x) { normal_(x, mean, deviation); }, 1);
}
void constant(const Variable& w, double value) {
  apply(w, [=](const Tensor& x) { x.fill_(value); });
}

Fan fan(const Shape& shape) {
  LOCKSTEP_CHECK(shape.rank() >= 2, "[init] expected at least 2 dims (for fewer use uniform()), got ", shape);
  int64_t kernel = 1;
  for (int i = 2; i < shape.rank(); ++i) kernel *= shape[i];
  return {shape[1] * kernel, shape[0] * kernel};
}

void kaiming_uniform(const Variable& w, double a) {
  const int64_t in = fan(w.shape()).in;
  const double bound = in > 0 ? kaiming_gain(a) * std::sqrt(3 / double(in)) : 0;
  uniform(w, -bound, bound);
}
void kaiming_normal(const Variable& w, double a) {
  normal(w, 0, kaiming_gain(a) / std::sqrt(double(fan(w.shape()).in)));
}
void xavier_uniform(const Variable& w, double gain) {
  const Fan f = fan(w.shape());
  const double bound = gain * std::sqrt(6 / double(f.in + f.out));
  uniform(w, -bound, bound);
}
void xavier_normal(const Variable& w, double gain) {
  const Fan f = fan(w.shape());
  normal(w, 0, gain * std::sqrt(2 / double(f.in + f.out)));
}

}  // namespace lockstep::nn::init
