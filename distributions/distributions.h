#pragma once
// Probability distributions whose parameters may be on the tape: names, parameters and formulas of torch.distributions.
#include "distributions/discrete.h"
#include "distributions/gamma.h"
#include "distributions/kl_divergence.h"
#include "distributions/location_scale.h"
#include "distributions/multivariate.h"
