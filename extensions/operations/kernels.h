#pragma once
// The kernel of running sums and products.
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Running sum or product along dim, in the dtype of out; reverse: from the end. out has x's shape and is contiguous.
using Cumulative = void(bool product, const Tensor& x, int dim, bool reverse, Tensor& out);
namespace on_cpu {
Cumulative cumulative;
}
namespace on_cuda {
Cumulative cumulative;
}
namespace kernels {
extern const Op<Cumulative> cumulative;
}

}  // namespace lockstep
