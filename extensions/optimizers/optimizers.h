#pragma once
// Optimizers that few programs need, and averages of weights: #include <lockstep/optimizers.h>.
#include "extensions/optimizers/composed_rules.h"
#include "extensions/optimizers/lbfgs.h"
#include "extensions/optimizers/matrix_rules.h"
#include "extensions/optimizers/weight_average.h"
