#pragma once
// Optimizers and schedules that few programs need: #include <lockstep/optimizers.h>.
#include "extensions/optimizers/composed_rules.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/lbfgs.h"
#include "extensions/optimizers/matrix_rules.h"
#include "extensions/optimizers/schedules.h"
