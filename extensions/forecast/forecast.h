#pragma once
// Forecasts the memory, traffic and time of a training before it starts, the time of collectives and training steps on
// networks and ranks that do not exist, and the kernels of a step on an absent GPU. Also writes a page about a run.
#include "extensions/forecast/dry_run.h"
#include "extensions/forecast/model_costs.h"
#include "extensions/forecast/page.h"
#include "extensions/forecast/plan.h"
#include "extensions/forecast/roofline.h"
#include "extensions/forecast/simulate.h"
#include "extensions/forecast/step_model.h"
