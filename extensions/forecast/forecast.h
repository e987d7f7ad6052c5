#pragma once
// Forecasts: memory, traffic and time of a training before it starts, collectives on networks and training steps on
// ranks that do not exist, the kernels of a step on a card that is not here, and a page about a run.
#include "extensions/forecast/dry_run.h"
#include "extensions/forecast/model_costs.h"
#include "extensions/forecast/page.h"
#include "extensions/forecast/plan.h"
#include "extensions/forecast/roofline.h"
#include "extensions/forecast/simulate.h"
#include "extensions/forecast/step_model.h"
