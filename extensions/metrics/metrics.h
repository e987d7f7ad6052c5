#pragma once
// Metrics that are exact over batches and ranks, and early stopping: #include <lockstep/metrics.h>.
#include "extensions/metrics/auroc.h"
#include "extensions/metrics/classification.h"
#include "extensions/metrics/early_stopping.h"
#include "extensions/metrics/errors.h"
#include "extensions/metrics/metric.h"
