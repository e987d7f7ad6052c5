#pragma once
// Initialisation of parameters by orthogonal matrices; nn/init.h has the others.
#include "autograd/variable.h"

namespace lockstep::nn::init {

/// A uniformly distributed semi-orthogonal matrix times gain (Saxe et al., 2013): its rows, or its columns if there are
/// fewer of them, are orthogonal and have length gain. Dims after the first are flattened.
void orthogonal(const Variable& w, double gain = 1);

}  // namespace lockstep::nn::init
