#pragma once
// The section "summary" of the configuration file: what a Trainer writes besides metrics.jsonl.
#include <string>

namespace lockstep::engine {

/// The section "summary".
struct SummaryConfig {
  std::string folder = {};  ///< folder for TensorBoard's event files; "": none
};

/// The tag of a value of a step's line in metrics.jsonl. evaluated: TrainerOptions::evaluated, such as "val".
/// "loss" is train/loss, "val_loss" val/loss, and "ema_val_loss" ema_val/loss.
std::string summary_tag(const std::string& name, const std::string& evaluated);

}  // namespace lockstep::engine
