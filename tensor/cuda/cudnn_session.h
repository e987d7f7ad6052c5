#pragma once
// What callers of cuDNN share: handles, kept plans, and what LOCKSTEP_CUDNN says. Internal.
#include <map>
#include <string>

#include "tensor/check.h"
#include "tensor/cuda/cudnn_attention_graph.h"
#include "tensor/cuda/runtime.h"
#include "tensor/graph.h"

namespace lockstep::cuda {

struct KeptPlan {
  EnginePlan plan;
  bool recorded = false;  ///< a graph starts its kernels: they have to stay loaded
};

/// A handle and what was planned with it. It serves one thread at a time: NVIDIA does not promise that threads may
/// share plans.
struct CudnnSession {
  cudnnHandle_t handle = nullptr;
  std::map<ConvProblem, KeptPlan> convolutions;
  std::map<AttentionProblem, KeptPlan> attentions;
};

/// LOCKSTEP_CUDNN is not 0.
bool uses_cudnn();
/// This thread's, for its current device, with its current stream; nullptr when it would have to be made while a graph
/// is recorded.
CudnnSession* cudnn_session(const char* op);
/// Says on stderr what serves the problem from now on, where LOCKSTEP_CUDNN is log.
void log_choice(const char* op, const std::string& problem, const EnginePlan& plan);
/// The Error of an execution that did not go well.
[[noreturn]] void fail_execution(const char* op, const std::string& problem, const EnginePlan& plan,
                                 const Descriptor& done);

std::string text_of(const ConvProblem& problem);
std::string text_of(const AttentionProblem& problem);

/// The kept plan, or the new one that `plan` returns; nullptr when there is none, and for what is new while a graph is
/// recorded.
template <class Problem, class Plan>
const EnginePlan* plan_for(std::map<Problem, KeptPlan>& kept, const char* op, const Problem& problem, Plan&& plan) {
  const bool recording = Graph::is_capturing();
  auto known = kept.find(problem);
  if (known == kept.end()) {
    if (recording) return nullptr;
    if (kept.size() >= 1024) {  // shapes that never come again
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
