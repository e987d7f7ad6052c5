// Convolutions by cuDNN: handles, plans and workspaces. How a plan is chosen is in cudnn_graph.cpp.
//
// cuDNN is asked once for each call's shapes, layouts, alignment and dtype, which takes milliseconds (more where it
// loads a library or compiles a kernel); the answer is kept, "not supported" too. The choice depends on nothing else,
// and engines that would not give the same bits each time are passed over. While a graph is recorded nothing new is
// asked, as loading a kernel may allocate and wait: Graph runs its body once before, which leaves the plans here; for
// what that did not meet our own kernel is recorded.
#include "tensor/cuda/cudnn.h"

#if defined(LOCKSTEP_WITH_CUDNN)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/check.h"
#include "tensor/cuda/cudnn_graph.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"
#include "tensor/environment.h"
#include "tensor/graph.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::cuda {
namespace {

enum class Use : uint8_t { off, on, log };

/// Log: each new plan is said on stderr, with the engine or the reason why there is none.
Use use() {
  static const Use chosen = [] {
    const std::string text = environment("LOCKSTEP_CUDNN").value_or("1");
    return text == "1" ? Use::on : text == "0" ? Use::off : Use::log;
  }();
  return chosen;
}

void check_cudnn(const char* call, cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  check("conv2d", cudaPeekAtLastError());  // says more, where there is one
  fail(str("[conv2d] ", call, ": ", cudnnGetErrorString(status), "; LOCKSTEP_CUDNN=0 does without cuDNN"));
}

struct KeptPlan {
  ConvPlan plan;
  bool recorded = false;  ///< a graph starts its kernels: they have to stay loaded
};

/// A handle and what was planned with it. It serves one thread at a time: NVIDIA does not promise that threads may
/// share plans.
struct Session {
  cudnnHandle_t handle = nullptr;
  std::map<ConvProblem, KeptPlan> plans;
};

/// Sessions are never destroyed (kernels may run, or be in graphs): those of threads that have ended serve new threads.
struct IdleSessions {
  std::mutex mutex;
  std::vector<std::unique_ptr<Session>> of_device[most_devices];
};
IdleSessions& idle_sessions() {
  static IdleSessions& all = *new IdleSessions;  // outlives all threads
  return all;
}

/// This thread's, for its current device; nullptr when it would have to be made while a graph is recorded.
Session* session() {
  struct Mine {
    std::unique_ptr<Session> of_device[most_devices];
    ~Mine() {
      IdleSessions& idle = idle_sessions();
      const std::lock_guard lock(idle.mutex);
      for (int device = 0; device < most_devices; ++device)
        if (of_device[device]) idle.of_device[device].push_back(std::move(of_device[device]));
    }
  };
  thread_local Mine sessions;
  std::unique_ptr<Session>& mine = sessions.of_device[current_device()];
  if (mine) [[likely]]
    return mine.get();
  IdleSessions& idle = idle_sessions();
  const std::lock_guard lock(idle.mutex);
  if (std::vector<std::unique_ptr<Session>>& left = idle.of_device[current_device()]; !left.empty()) {
    mine = std::move(left.back());
    left.pop_back();
  } else if (!Graph::is_capturing()) {
    auto made = std::make_unique<Session>();
    check_cudnn("cudnnCreate", cudnnCreate(&made->handle));
    mine = std::move(made);
  }
  return mine.get();
}

constexpr const char* op_names[] = {"conv2d", "conv2d_grad_input", "conv2d_grad_weight"};

std::string text_of(const ConvProblem& p) {
  const auto sizes = [](const ConvProblem::Operand& o) {
    return str("(", o.size[0], ", ", o.size[1], ", ", o.size[2], ", ", o.size[3], ")",
               o.stride[1] == 1 ? " channels last" : "");
  };
  const auto pair = [](const std::array<int64_t, 2>& v) { return str("(", v[0], ", ", v[1], ")"); };
  return str(p.dtype, p.tf32 ? " as tf32" : "", ", input ", sizes(p.x), ", weight ", sizes(p.w), ", output ",
             sizes(p.y), ", stride ", pair(p.stride), ", padding ", pair(p.padding), ", dilation ", pair(p.dilation));
}

/// Sizes and strides as cuDNN is to see them: strides of dims of size 1, which may be anything, as the layout has them.
ConvProblem::Operand operand(const Tensor& x) {
  const std::array<int64_t, 4> s{x.size(0), x.size(1), x.size(2), x.size(3)};
  const uint64_t address = reinterpret_cast<uint64_t>(x.raw_data());
  ConvProblem::Operand made{
      s, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, int64_t(std::min<uint64_t>(16, address & -address))};
  if (is_channels_last(x)) made.stride = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  return made;
}

bool is_images(const Tensor& x) { return x.is_contiguous() || is_channels_last(x); }

/// Says on stderr what serves the problem from now on.
void log_choice(const ConvProblem& problem, const ConvPlan& plan) {
  const std::string choice = plan.supported()
                                 ? str("cuDNN's engine ", plan.engine, ", ", plan.workspace, " bytes of workspace")
                                 : str("our kernel: ", plan.refusal);
  std::fprintf(stderr, "[%s] %s: %s\n", op_names[int(problem.direction)], text_of(problem).c_str(), choice.c_str());
}

/// The kept plan, or a new one; nullptr when there is none, and for what is new while a graph is recorded.
const ConvPlan* plan_for(Session& mine, const ConvProblem& problem) {
  const bool recording = Graph::is_capturing();
  auto known = mine.plans.find(problem);
  if (known == mine.plans.end()) {
    if (recording) return nullptr;
    if (mine.plans.size() >= 1024) {  // shapes that never come again
      check("conv2d", cudaDeviceSynchronize());
      std::erase_if(mine.plans, [](const auto& entry) { return !entry.second.recorded; });
    }
    known =
        mine.plans
            .emplace(problem, KeptPlan{plan_convolution(problem, {.handle = mine.handle}, workspace_limit(problem))})
            .first;
    if (use() == Use::log) log_choice(problem, known->second.plan);
  }
  KeptPlan& kept = known->second;
  kept.recorded |= recording;
  return kept.plan.supported() ? &kept.plan : nullptr;
}

bool run(ConvDirection direction, const Tensor& x, const Tensor& w, const Tensor& y, const ConvArgs& args) {
  const DType dtype = x.dtype();
  if (use() == Use::off || (dtype != f32 && dtype != f16 && dtype != bf16)) return false;
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
  Session* const mine = session();
  const ConvPlan* const plan = mine ? plan_for(*mine, problem) : nullptr;
  if (!plan) return false;
  check_cudnn("cudnnSetStream", cudnnSetStream(mine->handle, current_stream()));
  const Scratch workspace(size_t(plan->workspace));
  const Descriptor done = execute(mine->handle, *plan, x.raw_data(), w.raw_data(), y.raw_data(), workspace.as<void>());
  if (done.ok()) [[likely]]
    return true;
  const char* op = op_names[int(direction)];
  check(op, cudaPeekAtLastError());
  fail(str("[", op, "] cuDNN's engine ", plan->engine, " failed for ", text_of(problem), ": ", done.why(),
           "; LOCKSTEP_CUDNN=0 does without cuDNN"));
}

}  // namespace

bool cudnn_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, const Tensor& out) {
  if (!run(ConvDirection::forward, x, w, out, args)) return false;
  if (bias.defined()) add_(out, bias.view({bias.numel(), 1, 1}));
  return true;
}
bool cudnn_conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, const Tensor& grad_x) {
  return run(ConvDirection::grad_input, grad_x, w, grad, args);
}
bool cudnn_conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, const Tensor& grad_w) {
  return run(ConvDirection::grad_weight, x, grad_w, grad, args);
}

std::string cudnn_version() {
  const size_t version = cudnnGetVersion();  // 91900
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace lockstep::cuda

#else

namespace lockstep::cuda {
bool cudnn_conv2d(const Tensor&, const Tensor&, const Tensor&, const ConvArgs&, const Tensor&) { return false; }
bool cudnn_conv2d_grad_input(const Tensor&, const Tensor&, const ConvArgs&, const Tensor&) { return false; }
bool cudnn_conv2d_grad_weight(const Tensor&, const Tensor&, const ConvArgs&, const Tensor&) { return false; }
std::string cudnn_version() { return {}; }
}  // namespace lockstep::cuda

#endif
