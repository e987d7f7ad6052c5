#pragma once
// Advice for a training that runs out of memory: what to change in its configuration, and what each change saves. An
// extension's meson.build sets `memory_advisers = ['NAME']`, and one of its sources defines
// std::vector<MemoryAdviser> lockstep::engine::NAME(). meson generates the list (lockstep/list.cpp.in).
#include <string>
#include <vector>

#include "engine/config.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

/// An engine that runs out of memory.
struct OutOfMemoryRun {
  Device device;                      ///< where memory ran out
  nn::Module& model;                  ///< this rank's part of the model
  const Config& config;               ///< the configuration in effect
  const parallel::Plan& plan;         ///< how ranks share the work
  const optim::Optimizer& optimizer;  ///< the first optimizer
};
/// Returns lines that say what to change, or "". It may be called while the model runs, and must not use its values.
using MemoryAdviser = std::string (*)(const OutOfMemoryRun& run);
/// The advisers of the extensions that are built.
const std::vector<MemoryAdviser>& memory_advisers();

}  // namespace lockstep::engine
