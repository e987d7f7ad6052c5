#pragma once
// The Kullback-Leibler divergence of two distributions.
#include "extensions/distributions/distribution.h"

namespace lockstep::distributions {

/// E_p[log p - log q], by formula. Supported: two distributions of one class (except StudentT), Exponential and Gamma
/// in both orders, Uniform or Laplace against Normal. Error for other pairs: estimate these from samples.
Variable kl_divergence(const Distribution& p, const Distribution& q);

}  // namespace lockstep::distributions
