#pragma once
// Optimizers and learning-rate schedules that few programs need, and averages of weights: #include
// <lockstep/optimizers.h>.
#include "extensions/optimizers/composed_rules.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/lbfgs.h"
#include "extensions/optimizers/matrix_rules.h"
#include "extensions/optimizers/schedules.h"
#include "extensions/optimizers/weight_average.h"
