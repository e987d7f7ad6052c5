#pragma once
// Gradient clipping.
#include <vector>

#include "autograd/variable.h"

namespace lockstep::optim {

/// Norm of all gradients together: Euclidean (norm_type 2), maximum (infinity) or p-norm. Parameters without a gradient
/// are skipped.
double grad_norm(const std::vector<Variable>& parameters, double norm_type = 2);

/// Returns the norm of one gradient from the f64 sum of its squares. Rounds the norm to f32 unless the gradient is f64,
/// so that the norm of a gradient that ranks hold in shards equals that of the whole gradient. The norm of several
/// gradients is the root of the sum of their squared norms, added in the order of the model's parameters.
double norm_of_squares(double sum, DType dtype);

/// clip_grad_norm() if the gradients' norm is known already: scales all gradients by max_norm / (norm + 1e-6) if this
/// factor is below 1. Returns `norm`.
double clip_to_norm(const std::vector<Variable>& parameters, double norm, double max_norm);

/// Scales all gradients by max_norm / (norm + 1e-6) if this factor is below 1. Returns the norm before clipping. A norm
/// that is infinite or NaN makes the gradients 0 or NaN, as in PyTorch: check the result, or set error_if_nonfinite.
double clip_grad_norm(const std::vector<Variable>& parameters, double max_norm, double norm_type = 2,
                      bool error_if_nonfinite = false);

/// Clamps every element of every gradient to [-clip_value, clip_value].
void clip_grad_value(const std::vector<Variable>& parameters, double clip_value);

}  // namespace lockstep::optim
