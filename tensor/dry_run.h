#pragma once
// What a CUDA device would be asked to do, without one: the real program runs, and every kernel of the table is noted
// with its operands instead of being run. Memory of the device takes addresses and no bytes, so that a step of a model
// of any size is gone through in milliseconds.
//
//   DryRun dry;                                    // from here on cuda:0 is this one, also in builds that have none
//   { const Tensor x = empty({1 << 20}, {.dtype = bf16, .device = {Device::Type::cuda, 0}}), y = gelu_tanh(x); }
//   dry.take();                                    // one kernel, pointwise: reads 2 MiB, writes 2 MiB
//
// Numbers that are read from the device are zeros. One at a time; tensors that were made meanwhile must be gone before
// it goes.
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// One call of an entry of the table of kernels (tensor/kernels.h).
struct DryKernel {
  struct Operand {
    Shape shape;
    DType dtype;
    int64_t elements;  ///< that lie in memory: repeated ones once
    bool is_written;
    int64_t bytes() const { return elements * size_of(dtype); }
  };
  std::string name;
  std::vector<Operand> operands;  ///< those that are defined, in the order of the entry
  uint32_t reduced = 0;           ///< dims, of reduce
  bool causal = false;            ///< of attention
  int64_t window = 0;             ///< of causal attention; 0: none
  double dropout = 0;             ///< of attention
  bool fuses = true;              ///< the product's activation is one that cuBLASLt has

  const Operand& operand(size_t i) const { return operands.at(i); }
  int64_t bytes() const {
    int64_t all = 0;
    for (const Operand& o : operands) all += o.bytes();
    return all;
  }
};

class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  /// What was asked since the last time, by all threads. A copy to or from the host is "copy to host", "copy from
  /// host".
  std::vector<DryKernel> take();
};

}  // namespace lockstep
