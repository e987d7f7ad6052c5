#pragma once
// The CUDA kernels: one function for each entry of Kernels, in namespace lockstep::on_cuda. One file per family, as in
// tensor/cpu/.
#include <type_traits>

#include "tensor/kernels.h"

namespace lockstep::on_cuda {

// The entries that CUDA implements, by family.
// clang-format off
#define LOCKSTEP_CUDA_KERNELS(X) \
  /* copy.cu */ \
  X(copy) X(fill) \
  /* pointwise.cpp, pointwise_*.cu */ \
  X(pointwise) X(pointwise_grads) \
  /* random.cu */ \
  X(iota) X(uniform) X(normal) X(randint) X(dropout) \
  /* reduce.cu, column_sums.cu, scan.cu, sort.cu */ \
  X(reduce) X(column_sums) X(arg_reduce) X(cumulative) X(sort) X(topk) \
  /* matmul.cpp */ \
  X(matmul) X(matmul_unary_grad) \
  /* quantized.cu */ \
  X(matmul_quantized) X(read_quantized) \
  /* fp8.cu, matmul_fp8.cpp */ \
  X(cast_fp8) X(read_fp8) X(matmul_fp8) \
  /* conv.cu, pool.cu */ \
  X(conv2d) X(conv2d_grad_input) X(conv2d_grad_weight) X(max_pool2d) X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad) \
  X(adaptive_avg_pool2d) X(adaptive_avg_pool2d_grad) \
  /* softmax.cu, norm.cu, batch_norm.cu, loss.cu */ \
  X(softmax) X(softmax_grad) X(layer_norm) X(layer_norm_grad) X(rms_norm) X(rms_norm_grad) X(add_norm) X(add_norm_grad) X(batch_norm) X(batch_norm_grad) X(cross_entropy) X(cross_entropy_grad) \
  /* index.cu */ \
  X(embedding) X(embedding_grad) X(gather) X(scatter) X(index_select) X(index_add) X(triangle) \
  /* attention.cu, attention_grad.cu, rotary.cu */ \
  X(attention) X(attention_grad) X(rotary) \
  /* optim.cu, unscale.cu */ \
  X(adam) X(sgd) X(rmsprop) X(adagrad) X(lion) X(all_finite) X(unscale)
// clang-format on

// Declares one function per entry of the list, with the type that Kernels (tensor/kernels.h) gives this entry.
#define LOCKSTEP_DECLARE(name) std::remove_pointer_t<decltype(Kernels::name)> name;
LOCKSTEP_CUDA_KERNELS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

// Functions of the CUDA Backend that step_numbers.cu defines; tensor/backend.h documents them.
void store(void* to, const void* from, size_t bytes);
void square_sums(const void* pieces, int count, int64_t chunks, void* numbers, double* sums);
void add_sums(const void* pieces, int64_t count, const double* sums, double* totals);
void take_norm(const void* pieces, int64_t count, const double* sums, double* squares, void* numbers);

}  // namespace lockstep::on_cuda
