#pragma once
// How far one distribution is from another.
#include "distributions/distribution.h"

namespace lockstep::distributions {

/// The Kullback-Leibler divergence E_p[log p - log q], by formula: of two of one kind (but StudentT), and of
/// Exponential and Gamma (both ways), Uniform or Laplace from Normal. Error for other pairs: estimate it from samples.
Variable kl_divergence(const Distribution& p, const Distribution& q);

}  // namespace lockstep::distributions
