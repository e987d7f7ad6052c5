#pragma once
// A C++ interface to cuDNN's backend API. It wraps descriptors, describes a convolution as a graph of one operation,
// and chooses an execution plan for it among the engines that cuDNN's heuristics propose. It uses no tensors and no
// CUDA runtime, so that a test (tests/plans.cpp) can choose plans without a device. Internal.
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/dtype.h"

namespace lockstep::cuda {

/// A backend descriptor. It remembers the first call that failed, and later calls do nothing, so a chain of calls needs
/// no check in each line; why() tells at the end what went wrong.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  /// Sets an attribute (cudnnBackendSetAttribute).
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values);
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    return set(name, type, 1, &value);
  }
  /// Sets an attribute to another descriptor. If that one has failed, this descriptor takes over its failure.
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other);
  /// Completes the descriptor (cudnnBackendFinalize).
  Descriptor& finalize();
  /// Reads up to `count` elements of an attribute into `values`; returns how many. With 0 and nullptr, returns how many
  /// there are.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, void* values);
  /// Executes a plan; this descriptor is its variant pack (the tensors' addresses).
  Descriptor& execute(cudnnHandle_t handle, const Descriptor& plan);

  /// get() returns the handle for cuDNN; status() and ok() tell the first failure, and why() explains it.
  cudnnBackendDescriptor_t get() const { return handle_.get(); }
  cudnnStatus_t status() const { return status_; }
  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  const std::string& why() const { return why_; }

 private:
  struct Destroy {
    void operator()(void* handle) const { cudnnBackendDestroyDescriptor(handle); }
  };
  void note(const char* call, cudnnStatus_t status);

  std::unique_ptr<void, Destroy> handle_;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
  std::string why_;
};

/// The target of a plan: the device of a handle, or a device that is only described
/// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t description = nullptr;
};

/// A finalized execution plan, or the reason (`refusal`) why there is none.
struct EnginePlan {
  Descriptor plan = {};
  int64_t workspace = 0;  ///< bytes
  int64_t engine = -1;    ///< cuDNN's number of the engine
  std::string refusal = {};

  /// True if there is a plan.
  bool supported() const { return refusal.empty(); }
};

/// The three operations of a convolution.
enum class ConvDirection : uint8_t { forward, grad_input, grad_weight };

/// A convolution: everything that the choice of an engine depends on, and so the key of cached plans. Images x (N, C,
/// H, W) and y (N, K, P, Q), weights w (K, C / groups, R, S); strides in elements, alignment of the addresses in bytes.
struct ConvProblem {
  ConvDirection direction;
  DType dtype;
  bool tf32;
  struct Operand {
    std::array<int64_t, 4> size, stride;
    int64_t alignment;
    auto operator<=>(const Operand&) const = default;
  } x, w, y;
  std::array<int64_t, 2> stride, padding, dilation;
  auto operator<=>(const ConvProblem&) const = default;
};

/// The largest workspace in bytes that a plan may need: enough for a copy of the operands in another layout, with the
/// number of channels rounded up.
int64_t workspace_limit(const ConvProblem& problem);
/// Chooses a plan for a convolution. The plan multiplies in f32 unless the problem allows tf32 or has a 16-bit dtype.
EnginePlan plan_convolution(const ConvProblem& problem, const PlanTarget& target, int64_t max_workspace);
/// Runs the convolution on the stream of the handle; the addresses must be aligned as the problem says.
Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const void* x, const void* w, const void* y,
                   void* workspace);

}  // namespace lockstep::cuda
