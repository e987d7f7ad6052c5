#pragma once
// DryRun records which kernels a program would run on a CUDA device, without a device. The program runs as usual, but
// each kernel call is recorded with its operands and not run. Device memory is address space without pages, so a step
// of a model of any size takes milliseconds.
//
//   DryRun dry;          // from here on cuda:0 is the dry run, also in builds without CUDA
//   {
//     const Tensor x = empty({1 << 20}, {.dtype = bf16, .device = {Device::Type::cuda, 0}});
//     const Tensor y = gelu_tanh(x);
//   }
//   dry.take();          // one kernel, "pointwise": reads 2 MiB, writes 2 MiB
//
// Values read from the device are zeros. One DryRun at a time; all its tensors must be destroyed before it.
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// One call of a kernel (an entry of tensor/kernels.h).
struct DryKernel {
  /// A tensor argument.
  struct Operand {
    Shape shape;
    DType dtype;
    int64_t elements;  ///< elements in memory: a dim of stride 0 counts as one element
    bool is_written;
    int64_t bytes() const { return elements * size_of(dtype); }  ///< bytes that the kernel reads or writes
  };
  std::string name;
  std::vector<Operand> operands;  ///< defined tensors, in the order of the parameters
  uint32_t reduced = 0;           ///< reduce only: the reduced dims, as bits
  bool causal = false;            ///< attention only: true if a query sees no later keys
  int64_t window = 0;             ///< causal attention only: keys that a query sees; 0: all up to its own position
  double dropout = 0;             ///< attention only: the dropout probability
  bool fuses = true;              ///< products only: true if cuBLASLt can fuse the activation

  /// An operand by position; throws std::out_of_range.
  const Operand& operand(size_t i) const { return operands.at(i); }
  /// Bytes of all operands together.
  int64_t bytes() const {
    int64_t all = 0;
    for (const Operand& o : operands) all += o.bytes();
    return all;
  }
};

/// While a DryRun exists, cuda:0 records kernels instead of running them.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  /// The kernels called since the last take(), by all threads. Copies are "copy to host", "copy from host" and "copy".
  std::vector<DryKernel> take();
};

}  // namespace lockstep
