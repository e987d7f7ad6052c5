// cuDNN's handles and cached plans. How a plan is chosen is in graph.cpp.
//
// cuDNN is asked once for each problem: the operation with its arguments, shapes, layouts, alignment and dtype. That
// takes milliseconds, or more if it loads a library or compiles a kernel. The answer is cached, including "not
// supported". It depends on the problem only, and nondeterministic engines are rejected. While a graph is recorded no
// new plan is made, because loading a kernel may allocate and wait. Graph runs its body once before recording, which
// fills the cache; for problems that did not occur then, our own kernel is recorded.
#include "extensions/cudnn_convolutions/session.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <vector>

#include "base/environment.h"
#include "tensor/cuda/streams.h"

namespace lockstep::cuda {
namespace {

enum class Use : uint8_t { off, on, log };

/// LOCKSTEP_CUDNN: 0, 1 (the default) or log, which prints each new plan's engine, or why there is none.
Use use() {
  static const Use chosen = [] {
    const std::string text = environment("LOCKSTEP_CUDNN").value_or("1");
    return text == "1" ? Use::on : text == "0" ? Use::off : Use::log;
  }();
  return chosen;
}

void check_cudnn(const char* op, const char* call, cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  check(op, cudaPeekAtLastError());  // a CUDA error, if there is one, says more
  fail(str("[", op, "] ", call, ": ", cudnnGetErrorString(status), "; set LOCKSTEP_CUDNN=0 to run without cuDNN"));
}

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

}  // namespace

bool uses_cudnn() { return use() != Use::off; }

CudnnSession* cudnn_session(const char* op) {
  CudnnSession* const session = session_of_thread(op);
  if (session) check_cudnn(op, "cudnnSetStream", cudnnSetStream(session->handle, current_stream()));
  return session;
}

void log_choice(const char* op, const std::string& problem, const EnginePlan& plan) {
  if (use() != Use::log) return;
  const std::string choice = plan.supported()
                                 ? str("cuDNN's engine ", plan.engine, ", ", plan.workspace, " bytes of workspace")
                                 : str("built-in kernel: ", plan.refusal);
  std::fprintf(stderr, "[%s] %s: %s\n", op, problem.c_str(), choice.c_str());
}

void fail_execution(const char* op, const std::string& problem, const EnginePlan& plan, const Descriptor& done) {
  check(op, cudaPeekAtLastError());
  fail(str("[", op, "] cuDNN's engine ", plan.engine, " failed for ", problem, ": ", done.why(),
           "; set LOCKSTEP_CUDNN=0 to run without cuDNN"));
}

}  // namespace lockstep::cuda
