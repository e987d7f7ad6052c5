#pragma once
// The ranks that share a model for inference.
#include <memory>
#include <string>

#include "dist/process_group.h"
#include "extensions/inference/config.h"
#include "extensions/inference/engine.h"

namespace lockstep::inference {

/// The groups of an engine's rank. A null group stands for this rank alone.
struct Ranks {
  /// Forms the groups: tp_size neighbouring ranks share each layer, and ep_size neighbouring sets of such ranks share
  /// the experts. Further ranks form more such groups, each with a model of its own. Collective. Error if the number of
  /// ranks is no multiple of tp_size x ep_size.
  static Ranks join(const InferenceConfig& config, const InitArgs& args);
  /// Logs a message on rank 0.
  void say(const InitArgs& args, const std::string& text) const;
  /// The group of all ranks for collective reading and writing; null for a single process.
  dist::ProcessGroup* several() const { return world && world->size() > 1 ? world : nullptr; }

  dist::ProcessGroup* world = nullptr;              ///< all ranks of the job; null without a job
  std::shared_ptr<dist::ProcessGroup> tp, ep, all;  ///< ranks that share layers (tp), experts (ep), the model (all)
};

}  // namespace lockstep::inference
