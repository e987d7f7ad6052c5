#pragma once
// cuDNN's backend API: descriptors, the engines that its heuristics propose for a graph of operations, and an execution
// plan of the first one that we accept; and convolutions, graphs of one operation (cudnn_attention_graph.h has those of
// attention). No tensors and no CUDA runtime here, so that a test can ask cuDNN without a device (tests/cudnn/).
// Internal.
#include <cudnn_graph.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace lockstep::cuda {

/// A backend descriptor. The first call that fails is remembered, those after it do nothing: a chain of them is written
/// without a check in each line, and why() says at the end what went wrong.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values);
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    return set(name, type, 1, &value);
  }
  /// Other descriptors, whose failure is passed on.
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const Descriptor* const> others);
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    const Descriptor* const one = &other;
    return set(name, {&one, 1});
  }
  Descriptor& finalize();
  /// Elements that were written to `values`, of at most `count`; with 0 and nullptr how many there are.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, void* values);
  /// Runs a plan on the variant pack that this is.
  Descriptor& execute(cudnnHandle_t handle, const Descriptor& plan);

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

/// What a plan is made for: the device of a handle, or one that is only described
/// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR).
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t description = nullptr;
};

/// A finalized execution plan; or none, and why.
struct EnginePlan {
  Descriptor plan;
  int64_t workspace = 0;  ///< bytes
  int64_t engine = -1;    ///< cuDNN's number of it
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::string refusal;

  bool supported() const { return refusal.empty(); }
};

/// Whether engines with this note may serve: results are sums of products, in f32 at least, and the same bits each
/// time; where `exact`, products of f32 are, too.
bool accepts(cudnnBackendNumericalNote_t note, bool exact);
/// A finalized graph of these operations.
Descriptor graph_of(std::span<const Descriptor> operations, const PlanTarget& target);
/// The first plan of the heuristics that we accept, that cuDNN can make, and that needs at most this workspace.
EnginePlan choose_plan(const Descriptor& graph, const PlanTarget& target, bool exact, int64_t most_workspace);
/// What lies where, by the ids of tensors.
struct Placed {
  int64_t id;
  const void* pointer;
};
/// Runs the plan on the stream of the handle.
Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, std::span<const Placed> tensors, void* workspace);

// --- convolutions ---

enum class ConvDirection : uint8_t { forward, grad_input, grad_weight };

/// All that the choice of an engine depends on, and the key that a plan is kept under. Images x (N, C, H, W) and
/// y (N, K, P, Q), weights w (K, C / groups, R, S), with strides in elements and the alignment of their addresses in
/// bytes.
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

/// Bytes that a plan may ask for: room for the images in another layout, with channels rounded up.
int64_t workspace_limit(const ConvProblem& problem);
EnginePlan plan_convolution(const ConvProblem& problem, const PlanTarget& target, int64_t most_workspace);
/// Puts the convolution onto the stream of the handle; addresses as in the problem.
Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const void* x, const void* w, const void* y,
                   void* workspace);

}  // namespace lockstep::cuda
