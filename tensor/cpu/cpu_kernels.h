#pragma once
// The CPU kernels, one function for each entry of Kernels, in namespace lockstep::on_cpu. Families: pointwise, copy,
// random, reduce, sort, matmul, conv, pool, norm, loss, index, attention, optim.
#include <type_traits>

#include "tensor/kernels.h"

namespace lockstep::on_cpu {

// The name of every entry, in the order of Kernels.
#define LOCKSTEP_CPU_KERNELS(X) \
  X(pointwise) X(copy) X(fill) X(iota) X(uniform) X(normal) X(randint) X(dropout) X(reduce) X(arg_reduce) \
  X(cumulative) X(sort) X(topk) X(matmul) X(conv2d) X(conv2d_grad_input) X(conv2d_grad_weight) X(max_pool2d) \
  X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad) X(adaptive_avg_pool2d) X(adaptive_avg_pool2d_grad) \
  X(softmax) X(softmax_grad) X(layer_norm) X(layer_norm_grad) X(rms_norm) X(rms_norm_grad) X(batch_norm) \
  X(batch_norm_grad) X(cross_entropy) X(cross_entropy_grad) X(embedding) X(embedding_grad) X(gather) \
  X(scatter) X(index_select) X(index_add) X(triangle) X(attention) X(attention_grad) X(rotary) X(adam) \
  X(sgd) X(rmsprop) X(adagrad) X(lion) X(all_finite)

// Each has the type of its entry.
#define LOCKSTEP_DECLARE(name) std::remove_pointer_t<decltype(Kernels::name)> name;
LOCKSTEP_CPU_KERNELS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

}  // namespace lockstep::on_cpu
