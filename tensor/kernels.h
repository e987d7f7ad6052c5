#pragma once
// One struct of function pointers per device: the whole surface between operations and hardware. tensor/cpu/table.cpp
// fills it for the CPU (the reference), tensor/cuda/table.cpp for CUDA. An operation in ops_*.cpp checks its arguments,
// allocates the results and calls kernels(device).x(...); an empty entry throws "[x] no cuda kernel".
//
// Kernels trust their arguments: shapes fit, outputs are allocated and row-major unless said otherwise, dtypes are
// floating and equal unless said otherwise. f16 and bf16 are computed in f32 and rounded once.
// Optional tensors are undefined Tensors. Letters: B batch, T tokens, C channels, H heads, D head size, N images.
#include "tensor/kernel_args.h"
#include "tensor/observer.h"
#include "tensor/tensor.h"

namespace lockstep {

struct Kernels {
  // Pointwise: in[] has `count` tensors of any strides that broadcast to out's shape (they need not be expanded); out
  // any strides, and may be one of the inputs. A derivative gets (grad, saved) or (grad, a, b); what it does not read
  // may be grad again, and a unary that reads nothing gets (grad) alone.
  void (*pointwise)(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor* const* in, int count,
                    Tensor& out);
  void (*copy)(const Tensor& source, Tensor& out);  // any strides, any dtypes; source has out's shape
  void (*fill)(Tensor& out, double value);          // any strides

  // Made up. out contiguous.
  void (*iota)(Tensor& out, double start, double step);
  void (*uniform)(Tensor& out, double low, double high, PhiloxKey key);
  void (*normal)(Tensor& out, double mean, double deviation, PhiloxKey key);
  void (*randint)(Tensor& out, int64_t low, int64_t high, PhiloxKey key);
  // Keeps with 1 - p, scales by 1 / (1 - p).
  void (*dropout)(const Tensor& x, double p, PhiloxKey key, const Region& place, Tensor& out);

  // Reductions over the dims whose bit is set. x any strides; out contiguous, with those dims of size 1.
  // var uses `parameter` as correction. Sums of f16, bf16 in f32; fixed order, whatever the number of threads. out of
  // sum_squares may be f64.
  void (*reduce)(ReduceOp op, const Tensor& x, uint32_t dims, double parameter, Tensor& out);
  // First place on ties; NaN wins.
  void (*arg_reduce)(bool largest, const Tensor& x, int dim, Tensor& values, Tensor& indices);
  void (*cumulative)(bool product, const Tensor& x, int dim, bool reverse, Tensor& out);
  void (*sort)(const Tensor& x, int dim, bool descending, Tensor& values, Tensor& indices);          // stable
  void (*topk)(const Tensor& x, int dim, int64_t k, bool largest, Tensor& values, Tensor& indices);  // sorted

  // a (batch..., M, K), b (batch..., K, N), out (batch..., M, N) contiguous; the last two dims of a and b may be
  // transposed or have a row stride, batch dims may have stride 0. bias (N), pre like out.
  void (*matmul)(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulArgs& args, Tensor& pre,
                 Tensor& out);
  // f32, f64; times the derivative at kept, which is like out. May be empty.
  void (*matmul_unary_grad)(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args,
                            const Tensor& kept, Tensor& out);

  // x (N, C, H, W), w (K, C / groups, R, S), bias (K), out (N, K, P, Q)
  void (*conv2d)(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out);
  void (*conv2d_grad_input)(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x);
  void (*conv2d_grad_weight)(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w,
                             Tensor& grad_bias);

  // indices: i32, place in the H * W plane of x.
  void (*max_pool2d)(const Tensor& x, const PoolArgs& args, Tensor& out, Tensor& indices);
  void (*max_pool2d_grad)(const Tensor& grad, const Tensor& indices, Tensor& grad_x);
  void (*avg_pool2d)(const Tensor& x, const PoolArgs& args, Tensor& out);
  void (*avg_pool2d_grad)(const Tensor& grad, const PoolArgs& args, Tensor& grad_x);
  void (*adaptive_avg_pool2d)(const Tensor& x, Tensor& out);
  void (*adaptive_avg_pool2d_grad)(const Tensor& grad, Tensor& grad_x);

  // Rows: x is (rows, C) contiguous. mean, rstd, lse, loss: f32 (f64 for f64), (rows).
  void (*softmax)(bool log, const Tensor& x, Tensor& out);
  void (*softmax_grad)(bool log, const Tensor& grad, const Tensor& y, Tensor& grad_x);
  void (*layer_norm)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& out, Tensor& mean,
                     Tensor& rstd);
  void (*layer_norm_grad)(const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                          const Tensor& weight, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias);
  void (*rms_norm)(const Tensor& x, const Tensor& weight, double eps, Tensor& out, Tensor& rstd);
  void (*rms_norm_grad)(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight, Tensor& grad_x,
                        Tensor& grad_weight);
  // x (N, C, S). training: mean, rstd (C) are computed from the batch and returned, var is the biased variance; else
  // they are given.
  void (*batch_norm)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training, Tensor& mean,
                     Tensor& rstd, Tensor& var, Tensor& out);
  void (*batch_norm_grad)(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean,
                          const Tensor& rstd, bool training, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias);
  // target i64 (rows), weight (C) optional. loss of an ignored row is 0. grad_loss (rows). grad may be logits itself.
  void (*cross_entropy)(const Tensor& logits, const Tensor& target, const Tensor& weight, const CrossEntropyArgs& args,
                        Tensor& loss, Tensor& lse);
  void (*cross_entropy_grad)(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                             const Tensor& weight, const CrossEntropyArgs& args, Tensor& grad);

  // weight (V, C), index i64 (n), out (n, C). The gradient ADDS into grad_weight, in the order of index.
  void (*embedding)(const Tensor& weight, const Tensor& index, Tensor& out);
  void (*embedding_grad)(const Tensor& grad, const Tensor& index, int64_t padding_index, Tensor& grad_weight);
  // index i64 of out's (gather) or source's (scatter) shape. scatter writes into out; add: sums, else the last one
  // stays.
  void (*gather)(const Tensor& x, int dim, const Tensor& index, Tensor& out);
  void (*scatter)(bool add, const Tensor& source, int dim, const Tensor& index, Tensor& out);
  void (*index_select)(const Tensor& x, int dim, const Tensor& index, Tensor& out);
  void (*index_add)(const Tensor& source, int dim, const Tensor& index, Tensor& out);
  void (*triangle)(const Tensor& x, int64_t diagonal, bool upper, Tensor& out);  // last two dims

  // q (B, H, T, D), k v (B, G, S, D), G divides H, any strides with D of stride 1; out (B, H, T, D) any strides with D
  // of stride 1, lse f32 (B, H, T). mask: undefined, or bool / floating (added) broadcast to (B, H, T, S) by strides.
  void (*attention)(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionArgs& args,
                    Tensor& out, Tensor& lse);
  void (*attention_grad)(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                         const Tensor& out, const Tensor& lse, const AttentionArgs& args, Tensor& grad_q,
                         Tensor& grad_k, Tensor& grad_v);
  // x (..., T, D) contiguous last dim; rotates pairs (i, i + D/2) by position; inverse for the gradient.
  void (*rotary)(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, Tensor& out);

  // Optimizers: everything flat and contiguous, of one floating dtype. low (optional, f16 or bf16) receives a rounded
  // copy of p.
  void (*adam)(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low, const AdamArgs& args);
  void (*sgd)(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args);
  void (*rmsprop)(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum,
                  const RmspropArgs& args);
  void (*adagrad)(Tensor& p, const Tensor& grad, Tensor& sum, const AdagradArgs& args);
  void (*lion)(Tensor& p, const Tensor& grad, Tensor& m, const LionArgs& args);
  bool (*all_finite)(const Tensor& x);
  // Multiplies each, contiguous; false when an element was not finite.
  bool (*unscale)(const std::vector<Tensor>& tensors, double factor);
};

// The name of every entry, in their order.
// clang-format off
#define LOCKSTEP_KERNELS(X) \
  X(pointwise) X(copy) X(fill) X(iota) X(uniform) X(normal) X(randint) X(dropout) X(reduce) X(arg_reduce) \
  X(cumulative) X(sort) X(topk) X(matmul) X(matmul_unary_grad) X(conv2d) X(conv2d_grad_input) X(conv2d_grad_weight) X(max_pool2d) \
  X(max_pool2d_grad) X(avg_pool2d) X(avg_pool2d_grad) X(adaptive_avg_pool2d) X(adaptive_avg_pool2d_grad) \
  X(softmax) X(softmax_grad) X(layer_norm) X(layer_norm_grad) X(rms_norm) X(rms_norm_grad) X(batch_norm) \
  X(batch_norm_grad) X(cross_entropy) X(cross_entropy_grad) X(embedding) X(embedding_grad) X(gather) \
  X(scatter) X(index_select) X(index_add) X(triangle) X(attention) X(attention_grad) X(rotary) X(adam) \
  X(sgd) X(rmsprop) X(adagrad) X(lion) X(all_finite) X(unscale)
// clang-format on

extern const Kernels cpu_kernels;

/// The table of a device, which this thread's next kernels then run on. Error when this build has no such device.
const Kernels& table(Device device);

/// kernels(device).x with a check that the entry exists, under `name` for the observer until the end of the statement:
/// call LOCKSTEP_KERNEL(device, softmax)(...).
[[noreturn]] void fail_no_kernel(const char* name, Device device);
#define LOCKSTEP_KERNEL_AS(device, entry, name)                         \
  (::lockstep::KernelScope(name), ::lockstep::table(device).entry       \
                                      ? ::lockstep::table(device).entry \
                                      : (::lockstep::fail_no_kernel(#entry, device), nullptr))
#define LOCKSTEP_KERNEL(device, entry) LOCKSTEP_KERNEL_AS(device, entry, #entry)

}  // namespace lockstep
