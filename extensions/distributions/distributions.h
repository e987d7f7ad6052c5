#pragma once
// All probability distributions. Names, parameters and formulas are as in torch.distributions; gradients flow to
// parameters that are Variables.
#include "extensions/distributions/discrete.h"
#include "extensions/distributions/gamma.h"
#include "extensions/distributions/kl_divergence.h"
#include "extensions/distributions/location_scale.h"
#include "extensions/distributions/multivariate.h"
