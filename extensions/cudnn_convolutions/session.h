#pragma once
// Shared by the callers of cuDNN: handles, cached plans and the setting LOCKSTEP_CUDNN. Internal.
#include <map>
#include <string>

#include "base/check.h"
#include "extensions/cudnn_convolutions/graph.h"
#include "tensor/cuda/runtime.h"
#include "tensor/graph.h"

namespace lockstep::cuda {

/// A plan in the cache.
struct KeptPlan {
  EnginePlan plan;
  bool recorded = false;  ///< true: a graph launches its kernels, so they must stay loaded
};

/// A handle and the plans made with it. One thread uses it at a time, because NVIDIA does not promise that threads may
/// share plans.
struct CudnnSession {
  cudnnHandle_t handle = nullptr;
  std::map<ConvProblem, KeptPlan> convolutions;
};

/// True unless LOCKSTEP_CUDNN is 0.
bool uses_cudnn();
/// This thread's session for its current device, set to its current stream. nullptr if it would have to be created
/// while a graph is recorded.
CudnnSession* cudnn_session(const char* op);
/// If LOCKSTEP_CUDNN is "log", prints to stderr which engine or kernel will compute `problem` from now on.
void log_choice(const char* op, const std::string& problem, const EnginePlan& plan);
/// Throws the error of a failed execution.
[[noreturn]] void fail_execution(const char* op, const std::string& problem, const EnginePlan& plan,
                                 const Descriptor& done);

/// A problem in words, for messages.
std::string text_of(const ConvProblem& problem);

/// The cached plan, or a new one made by `plan` and cached. nullptr if cuDNN does not support the problem, or if a
/// new plan would have to be made while a graph is recorded.
template <class Problem, class Plan>
const EnginePlan* plan_for(std::map<Problem, KeptPlan>& kept, const char* op, const Problem& problem, Plan&& plan) {
  const bool recording = Graph::is_capturing();
  auto known = kept.find(problem);
  if (known == kept.end()) {
    if (recording) return nullptr;
    if (kept.size() >= 1024) {  // most likely shapes that never recur
      check(op, cudaDeviceSynchronize());
      std::erase_if(kept, [](const auto& entry) { return !entry.second.recorded; });
    }
    known = kept.emplace(problem, KeptPlan{plan()}).first;
    log_choice(op, text_of(problem), known->second.plan);
  }
  known->second.recorded |= recording;
  return known->second.plan.supported() ? &known->second.plan : nullptr;
}

}  // namespace lockstep::cuda
