#pragma once
// The kernels of an optimizer step: update rules, and the parts of a StepBatch (step_batch.h) of many tensors.
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Options of one step of Adam or AdamW on flat, contiguous f32 (or f64) tensors. Here and below, the gradient is first
/// multiplied by grad_scale, and by -1 if `maximize`.
struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;       ///< true (AdamW): p -= lr * weight_decay * p; false (Adam): g += weight_decay * p
  double bias1, bias2;  ///< bias corrections 1 - beta^t, or 1
  bool maximize = false;
  double grad_scale = 1;
  bool corrects = false;  ///< true if bias1 and bias2 are bias corrections
  bool operator==(const AdamArgs&) const = default;
};
/// Options of one SGD step. first: true in the first step, which sets the momentum buffer to the gradient.
struct SgdArgs {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first, maximize = false;
  double grad_scale = 1;
  bool operator==(const SgdArgs&) const = default;
};
/// Each rule updates the parameter p. Tensors are flat, contiguous and of one floating dtype; low (optional) receives a
/// copy of p rounded to f16 or bf16.
/// Adam and AdamW. m and v: moments; v_max: largest v so far, defined for AMSGrad only.
using AdamKernel = void(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low,
                        const AdamArgs& args);
/// SGD. momentum: the momentum buffer; undefined if args.momentum is 0.
using SgdKernel = void(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args);
// Parts of a StepBatch. They read and write structs of step_batch.h in device memory; CUDA only.
/// Copies `bytes` (a multiple of 8) from the host to the device; `from` may be reused on return.
using StoreNumbers = void(void* to, const void* from, size_t bytes);
/// Computes the sum of squares of each chunk of the tensors that `pieces` describes (SquarePiece).
using SquareSums = void(const void* pieces, int count, int64_t chunks, void* numbers, double* sums);
/// Adds up the chunk sums of each tensor (NormPiece).
using AddSums = void(const void* pieces, int64_t count, const double* sums, double* totals);
/// Computes the norm of all tensors, the clip factor, and the decision to skip the step.
using TakeNorm = void(const void* pieces, int64_t count, const double* sums, double* squares, void* numbers);

namespace on_cpu {
/// The kernels for the CPU.
AdamKernel adam;
SgdKernel sgd;
}  // namespace on_cpu

namespace on_cuda {
/// The kernels for CUDA.
AdamKernel adam;
SgdKernel sgd;
StoreNumbers store_numbers;
SquareSums square_sums;
AddSums add_sums;
TakeNorm take_norm;
}  // namespace on_cuda

namespace kernels {
/// The operations, each with the kernels of all devices.
extern const Op<AdamKernel> adam;
extern const Op<SgdKernel> sgd;
extern const Op<StoreNumbers> store_numbers;
extern const Op<SquareSums> square_sums;
extern const Op<AddSums> add_sums;
extern const Op<TakeNorm> take_norm;
}  // namespace kernels

}  // namespace lockstep
