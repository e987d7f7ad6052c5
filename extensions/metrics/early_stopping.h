#pragma once
// Ends a training whose metric no longer improves.
#include <cstdint>
#include <string>

#include "train/trainer.h"

namespace lockstep::metrics {

/// Options of early_stopping().
struct EarlyStoppingOptions {
  std::string metric = "val_loss";  ///< as in TrainerOptions::best: a "-" before it if greater values are better
  int64_t patience = 1;             ///< evaluations in a row without improvement after which the training stops
  double min_delta = 0;             ///< a value improves if it is better than the best so far by more than this
  /// True: a value that is better by min_delta or less becomes the best, too, as with Transformers' callback.
  bool follows_small_steps = false;
};
/// A callback that follows evaluations. NaN never improves. Checkpoints keep the best value and the number of
/// evaluations since. Give each Trainer one of its own. Error for patience < 1 or min_delta < 0; an evaluation without
/// the metric is an Error that lists the others.
train::Callback early_stopping(const EarlyStoppingOptions& options = {});

}  // namespace lockstep::metrics
