#pragma once
// The kernels of the core's operations: kernels::softmax(device, ...) runs the device's kernel. operations.def lists
// and documents them; the functions themselves are in tensor/cpu/ (the reference) and tensor/cuda/.
//
// Conventions. Kernels trust their arguments: shapes fit and outputs are allocated. Unless operations.def states
// otherwise, outputs are row-major, and dtypes are floating and equal. f16 and bf16 are computed in f32 and rounded
// once. Optional tensors are undefined Tensors. Letters: B batch, T tokens, C channels, H heads, D head size, N images.
#include "tensor/kernel_args.h"
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

namespace kernels {
#define LOCKSTEP_KERNEL(name, result, parameters) extern const Op<result parameters> name;
#include "tensor/operations.def"
}  // namespace kernels

namespace on_cpu {
#define LOCKSTEP_KERNEL(name, result, parameters) result name parameters;
#include "tensor/operations.def"
}  // namespace on_cpu

namespace on_cuda {
#define LOCKSTEP_KERNEL(name, result, parameters) result name parameters;
#include "tensor/operations.def"
}  // namespace on_cuda

}  // namespace lockstep
