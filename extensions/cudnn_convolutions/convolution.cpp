// Decides which convolutions cuDNN computes, and keeps its handles and plans. How a plan is chosen is in graph.cpp.
//
// cuDNN is asked once for each problem: the operation with its arguments, shapes, layouts, alignment and dtype. That
// takes milliseconds, or more if it loads a library or compiles a kernel. The answer is cached, including "not
// supported". It depends on the problem only, and nondeterministic engines are rejected. While a graph is recorded no
// new plan is made, because loading a kernel may allocate and wait. Graph runs its body once before recording, which
// fills the cache; for problems that did not occur then, our own kernel is recorded.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "extensions/cudnn_convolutions/cudnn_convolutions.h"
#include "extensions/cudnn_convolutions/graph.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"
#include "tensor/graph.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::cuda {
namespace {

/// LOCKSTEP_CUDNN: 0, 1 (the default) or log, which prints each new plan's engine, or why there is none.
const std::string& setting() {
  static const std::string& text =
      *new std::string(environment("LOCKSTEP_CUDNN").value_or("1"));  // outlives all threads
  return text;
}

void check_cudnn(const char* op, const char* call, cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  check(op, cudaPeekAtLastError());  // a CUDA error, if there is one, says more
  fail(str("[", op, "] ", call, ": ", cudnnGetErrorString(status), "; set LOCKSTEP_CUDNN=0 to run without cuDNN"));
}

/// A plan in the cache.
struct KeptPlan {
  EnginePlan plan;
  bool recorded = false;  ///< true: a graph launches its kernels, so they must stay loaded
};

/// A handle and the plans made with it. One thread uses it at a time, because NVIDIA does not promise that threads may
/// share plans.
struct CudnnSession {
  cudnnHandle_t handle = nullptr;
  std::map<ConvProblem, KeptPlan> plans;
};

/// Sessions are never destroyed, because their kernels may still run or be part of graphs. Sessions of threads
/// that have ended serve new threads.
struct IdleSessions {
  std::mutex mutex;
  std::vector<std::unique_ptr<CudnnSession>> of_device[max_devices];
};
IdleSessions& idle_sessions() {
  static IdleSessions& all = *new IdleSessions;  // leaked: outlives all threads
  return all;
}

/// This thread's session for its current device. nullptr if it would have to be created while a graph is recorded.
CudnnSession* session_of_thread(const char* op) {
  struct Mine {
    std::unique_ptr<CudnnSession> of_device[max_devices];
    ~Mine() {
      IdleSessions& idle = idle_sessions();
      const std::lock_guard lock(idle.mutex);
      for (int device = 0; device < max_devices; ++device)
        if (of_device[device]) idle.of_device[device].push_back(std::move(of_device[device]));
    }
  };
  thread_local Mine sessions;
  std::unique_ptr<CudnnSession>& mine = sessions.of_device[current_device()];
  if (mine) [[likely]]
    return mine.get();
  IdleSessions& idle = idle_sessions();
  const std::lock_guard lock(idle.mutex);
  if (std::vector<std::unique_ptr<CudnnSession>>& left = idle.of_device[current_device()]; !left.empty()) {
    mine = std::move(left.back());
    left.pop_back();
  } else if (!Graph::is_capturing()) {
    auto made = std::make_unique<CudnnSession>();
    check_cudnn(op, "cudnnCreate", cudnnCreate(&made->handle));
    mine = std::move(made);
  }
  return mine.get();
}

/// A problem in words, for messages.
std::string text_of(const ConvProblem& p) {
  const auto sizes = [](const ConvProblem::Operand& o) {
    return str("(", o.size[0], ", ", o.size[1], ", ", o.size[2], ", ", o.size[3], ")",
               o.stride[1] == 1 ? " channels last" : "");
  };
  const auto pair = [](const std::array<int64_t, 2>& v) { return str("(", v[0], ", ", v[1], ")"); };
  return str(p.dtype, p.tf32 ? " as tf32" : "", ", input ", sizes(p.x), ", weight ", sizes(p.w), ", output ",
             sizes(p.y), ", stride ", pair(p.stride), ", padding ", pair(p.padding), ", dilation ", pair(p.dilation));
}

/// The plan in the cache, or a new one that is then cached. nullptr if cuDNN does not support the problem, or if a new
/// plan would have to be made while a graph is recorded.
const EnginePlan* plan_for(CudnnSession& session, const char* op, const ConvProblem& problem) {
  const bool recording = Graph::is_capturing();
  auto known = session.plans.find(problem);
  if (known == session.plans.end()) {
    if (recording) return nullptr;
    if (session.plans.size() >= 1024) {  // most likely shapes that never recur
      check(op, cudaDeviceSynchronize());
      std::erase_if(session.plans, [](const auto& entry) { return !entry.second.recorded; });
    }
    EnginePlan plan = plan_convolution(problem, {.handle = session.handle}, workspace_limit(problem));
    if (setting() == "log") {
      const std::string choice = plan.supported()
                                     ? str("cuDNN's engine ", plan.engine, ", ", plan.workspace, " bytes of workspace")
                                     : str("built-in kernel: ", plan.refusal);
      std::fprintf(stderr, "[%s] %s: %s\n", op, text_of(problem).c_str(), choice.c_str());
    }
    known = session.plans.emplace(problem, KeptPlan{std::move(plan)}).first;
  }
  known->second.recorded |= recording;
  return known->second.plan.supported() ? &known->second.plan : nullptr;
}

constexpr const char* op_names[] = {"conv2d", "conv2d_grad_input", "conv2d_grad_weight"};

/// Sizes and strides of x for cuDNN. x may have any stride in a dim of size 1: cuDNN is given the layout's stride.
ConvProblem::Operand operand(const Tensor& x) {
  const std::array<int64_t, 4> s{x.size(0), x.size(1), x.size(2), x.size(3)};
  const uint64_t address = reinterpret_cast<uint64_t>(x.raw_data());
  ConvProblem::Operand made{
      s, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, int64_t(std::min<uint64_t>(16, address & -address))};
  if (is_channels_last(x)) made.stride = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  return made;
}

/// True if x is stored in one of the two image layouts (tensor/layout.h).
bool is_images(const Tensor& x) { return x.is_contiguous() || is_channels_last(x); }

/// Computes a convolution of x to y, or its gradient by x or w. Returns false if cuDNN does not support it.
bool run(ConvDirection direction, const Tensor& x, const Tensor& w, const Tensor& y, const ConvArgs& args) {
  const DType dtype = x.dtype();
  if (setting() == "0" || (dtype != f32 && dtype != f16 && dtype != bf16)) return false;
  if (x.numel() == 0 || w.numel() == 0 || y.numel() == 0 || !is_images(x) || !w.is_contiguous() || !is_images(y))
    return false;
  const bool tf32 = dtype == f32 && float32_matmul_precision() == MatmulPrecision::tf32;
  const ConvProblem problem{direction,
                            dtype,
                            tf32,
                            operand(x),
                            operand(w),
                            operand(y),
                            {args.stride[0], args.stride[1]},
                            {args.padding[0], args.padding[1]},
                            {args.dilation[0], args.dilation[1]}};
  const char* const op = op_names[int(direction)];
  CudnnSession* const session = session_of_thread(op);
  if (!session) return false;
  check_cudnn(op, "cudnnSetStream", cudnnSetStream(session->handle, current_stream()));
  const EnginePlan* const plan = plan_for(*session, op, problem);
  if (!plan) return false;
  const Scratch workspace(size_t(plan->workspace));
  const Descriptor done =
      execute(session->handle, *plan, x.raw_data(), w.raw_data(), y.raw_data(), workspace.as<void>());
  if (done.ok()) return true;
  check(op, cudaPeekAtLastError());
  fail(str("[", op, "] cuDNN's engine ", plan->engine, " failed for ", text_of(problem), ": ", done.why(),
           "; set LOCKSTEP_CUDNN=0 to run without cuDNN"));
}

bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  if (!run(ConvDirection::forward, x, w, out, args)) return false;
  if (bias.defined()) add_(out, bias.view({bias.numel(), 1, 1}));
  return true;
}
bool grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  return run(ConvDirection::grad_input, grad_x, w, grad, args);
}
bool grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  return !grad_bias.defined() && run(ConvDirection::grad_weight, x, grad_w, grad, args);
}

std::vector<std::pair<std::string, std::string>> facts() {
  const size_t version = cudnnGetVersion();  // 91900 is 9.19.0
  return {{"cuDNN", str(version / 10000, ".", version / 100 % 100, ".", version % 100)}};
}

}  // namespace
}  // namespace lockstep::cuda

std::vector<lockstep::ConvBackend> lockstep::cudnn_convolutions() {
  return {{Device::Type::cuda, cuda::forward, cuda::grad_input, cuda::grad_weight, cuda::facts}};
}
