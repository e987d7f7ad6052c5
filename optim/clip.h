#pragma once
// Clipping of gradients.
#include <vector>

#include "autograd/variable.h"

namespace lockstep::optim {

/// Euclidean (norm_type 2), max (infinity) or p-norm of all gradients together; parameters without one are skipped.
double grad_norm(const std::vector<Variable>& parameters, double norm_type = 2);

/// The norm of one gradient from the f64 sum of its squares, rounded to f32 unless the gradient is f64: so that a norm
/// has the same bits whoever added up its squares (a whole parameter, shards, stages). The norm of all is the root of
/// the sum of their squares, in the order of the model.
double norm_of_squares(double sum, DType dtype);

/// What clipping does once the norm is known: scales all gradients by max_norm / (norm + 1e-6) when that is below 1.
/// Gives back `norm`.
double clip_to_norm(const std::vector<Variable>& parameters, double norm, double max_norm);

/// Scales all gradients by max_norm / (norm + 1e-6) when that is below 1, and returns the norm before. A norm that is
/// infinite or NaN makes them 0 or NaN, as in PyTorch; look at the returned norm, or ask for the Error.
double clip_grad_norm(const std::vector<Variable>& parameters, double max_norm, double norm_type = 2,
                      bool error_if_nonfinite = false);

/// Clamps every element of every gradient to [-clip_value, clip_value].
void clip_grad_value(const std::vector<Variable>& parameters, double clip_value);

}  // namespace lockstep::optim
