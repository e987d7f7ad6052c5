#pragma once
// The time that a rank loses to offload and to gathers of parameters, for wall_clock_breakdown and traces.
#include "base/clock.h"
#include "tensor/tensor.h"
#include "trace/trace.h"

namespace lockstep::zero {

/// Seconds. read, write: waits for files of offloaded state, and copies from and to host memory. gather: waits for
/// parameters that other ranks hold.
struct Waited {
  double read = 0, write = 0, gather = 0;
};
/// The sums of this thread since its start. Callers take differences.
inline thread_local constinit Waited waited;

/// Adds the time from here to the end of the scope to a member of `waited`, and records it in the trace.
class Waiting {
 public:
  explicit Waiting(double Waited::*sum)
      : scope_(sum == &Waited::read    ? "wait for a read"
               : sum == &Waited::write ? "wait for a write"
                                       : "wait for a gather",
               trace::Category::wait),
        sum_(waited.*sum) {}
  ~Waiting() { sum_ += steady_seconds() - start_; }

 private:
  const trace::Scope scope_;
  double& sum_;
  const double start_ = steady_seconds();
};

/// Returns `tensor` on a device. A copy counts as a write if it goes to host memory, else as a read.
inline Tensor moved(const Tensor& tensor, Device to) {
  if (tensor.device() == to) return tensor;
  const Waiting waiting(to.is_cpu() ? &Waited::write : &Waited::read);
  return tensor.to(to);
}
/// Copies updated parameters from the memory of their offloaded state to `to`.
inline void bring_back(const Tensor& to, const Tensor& updated) {
  const Waiting waiting(&Waited::read);
  to.copy_(updated);
}

}  // namespace lockstep::zero
