#pragma once
// All probability distributions. Names, parameters and formulas are as in torch.distributions; gradients flow to
// parameters that are Variables.
#include "distributions/discrete.h"
#include "distributions/gamma.h"
#include "distributions/kl_divergence.h"
#include "distributions/location_scale.h"
#include "distributions/multivariate.h"
