// Gradient clipping. Norms are computed from sums of squares over blocks of fixed length, so their bits depend neither
// on the number of threads nor on how a parameter is sharded.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "optim/step_batch.h"
#include "tensor/ops.h"

namespace lockstep::optim {

namespace {

/// The values of one-element tensors, with one synchronisation per device.
std::vector<double> values_of(const std::vector<Tensor>& scalars) {
  std::vector<double> values(scalars.size());
  std::map<int, std::vector<size_t>> on_device;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].device().is_cpu()) values[i] = scalars[i].item();
    else on_device[scalars[i].device().index].push_back(i);
  }
  for (const auto& [device, indices] : on_device) {
    std::vector<Tensor> all;
    for (const size_t i : indices) all.push_back(scalars[i].to(f64).reshape({1}));
    const std::vector<double> read = cat(all).to_vector<double>();
    for (size_t j = 0; j < indices.size(); ++j) values[indices[j]] = read[j];
  }
  return values;
}

/// Euclidean norm of gradients on one device, in two kernels.
double norm_on_device(const std::vector<Tensor>& grads) {
  StepBatch batch(grads[0].device());
  batch.set({});
  std::vector<StepBatch::Squares> squares;
  std::vector<NormPiece> norms;
  int64_t sums = 0;
  for (const Tensor& grad : grads) {
    const int64_t chunks = (grad.numel() + StepBatch::chunk - 1) / StepBatch::chunk;
    squares.push_back({grad.contiguous(), sums});
    norms.push_back({sums, chunks, grad.dtype() == f64});
    sums += chunks;
  }
  const Tensor of_chunks = empty({sums}, {.dtype = f64, .device = grads[0].device()});
  batch.add_squares(squares, of_chunks);
  batch.take_norm(norms, of_chunks);
  return batch.read().norm;
}

}  // namespace

double norm_of_squares(double sum, DType dtype) {
  return dtype == f64 ? std::sqrt(sum) : double(float(std::sqrt(sum)));
}

double grad_norm(const std::vector<Variable>& parameters, double norm_type) {
  LOCKSTEP_CHECK(norm_type > 0, "[grad_norm] expected norm_type > 0, got ", norm_type);
  std::vector<Tensor> grads;
  for (const Variable& parameter : parameters) {
    const Tensor& grad = parameter.checked_grad("grad_norm");
    if (grad.defined() && grad.numel() > 0) grads.push_back(grad);
  }
  if (norm_type == 2 && !grads.empty() && !grads[0].device().is_cpu() &&
      std::all_of(grads.begin(), grads.end(), [&](const Tensor& g) { return g.device() == grads[0].device(); }))
    return norm_on_device(grads);
  // Launch the kernels of all gradients before reading a result, so that the device does not idle in between.
  std::vector<Tensor> parts;
  std::vector<DType> dtypes;
  for (const Tensor& grad : grads) {
    dtypes.push_back(grad.dtype());
    parts.push_back(norm_type == 2          ? sum_squares(grad, {}, false, f64)
                    : std::isinf(norm_type) ? amax(abs(grad))
                                            : sum(pow_scalar(abs(grad.to(f64)), norm_type)));
  }
  const std::vector<double> values = values_of(parts);
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = norm_type == 2 ? norm_of_squares(values[i], dtypes[i]) : values[i];
    if (norm_type == 2) total += value * value;  // squares of large f32 values need f64
    else if (std::isinf(norm_type)) total = std::isnan(value) || value > total ? value : total;
    else total += value;
  }
  if (norm_type == 2) return std::sqrt(total);
  return std::isinf(norm_type) ? total : std::pow(total, 1 / norm_type);
}

double clip_to_norm(const std::vector<Variable>& parameters, double norm, double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] expected max_norm >= 0, got ", max_norm);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  for (const Variable& parameter : parameters) {
    if (parameter.grad().defined()) mul_scalar_(parameter.grad(), factor);
  }
  return norm;
}

double clip_grad_norm(const std::vector<Variable>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] expected max_norm >= 0, got ", max_norm);
  const double norm = grad_norm(parameters, norm_type);
  LOCKSTEP_CHECK(!error_if_nonfinite || std::isfinite(norm), "[clip_grad_norm] the norm of the gradients is ", norm,
                 "; expected a finite one: skip this step, or lower the learning rate");
  return clip_to_norm(parameters, norm, max_norm);
}

void clip_grad_value(const std::vector<Variable>& parameters, double clip_value) {
  LOCKSTEP_CHECK(clip_value >= 0, "[clip_grad_value] expected clip_value >= 0, got ", clip_value);
  for (const Variable& parameter : parameters) {
    if (parameter.checked_grad("clip_grad_value").defined()) clamp_(parameter.grad(), -clip_value, clip_value);
  }
}

}  // namespace lockstep::optim
