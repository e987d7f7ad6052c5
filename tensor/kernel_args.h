#pragma once
// Arguments of kernels other than tensors: which function to compute, and its options. See tensor/kernels.h.
#include <memory>

#include "tensor/dtype.h"
#include "tensor/random.h"
#include "tensor/shape.h"

namespace lockstep {

/// All pointwise operations: the rows of pointwise.def, then three operations that have no row there.
enum class PointwiseOp : uint8_t {
#define LOCKSTEP_UNARY(name, functor, types) name,
#define LOCKSTEP_UNARY1(name, functor, types, p, d) name,
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e) name,
#define LOCKSTEP_BINARY(name, functor, types) name,
#define LOCKSTEP_COMPARE(name, functor) name,
#include "tensor/pointwise.def"
  where,    // (condition, a, b)
  addcmul,  // a + p * b * c
  lerp,     // a + p * (b - a)
  count
};

/// The function that a pointwise kernel computes: the value of the operation, or the gradient of operand 0 or 1. For
/// a gradient, the kernel's inputs are (incoming gradient, saved input or output) if the operation is unary, and
/// (incoming gradient, a, b) if it is binary.
enum class PointwisePart : uint8_t { value, grad0, grad1 };

/// Scalar parameters of a pointwise operation, see pointwise.def.
struct PointwiseArgs {
  Scalar p = 0, q = 0;
};

/// Reductions of kernels::reduce.
enum class ReduceOp : uint8_t { sum, mean, prod, max, min, any, all, sum_squares, logsumexp, var };

/// Rows per part where many rows are added to one place (the gradient of an embedding, index_add). The rows, in the
/// order of the indices, are divided into parts. Each part is summed in order, the first onto the old value, the others
/// from 0. Then the sums of the parts are added in order. CPU and CUDA both sum this way, so they get the same bits.
inline constexpr int64_t rows_of_part = 32;

/// Activation that is fused into a matrix product.
enum class Activation : uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

/// out = activation(alpha * a b + beta * c + bias). `pre` (optional, with beta 0) receives the value before the
/// activation.
struct MatmulArgs {
  double alpha = 1, beta = 0;
  Activation activation = Activation::none;
};

/// Arguments of a 2-d convolution; a 1-d convolution has height 1.
struct ConvArgs {
  Dims stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;  ///< divides input and output channels
};

/// Arguments of 2-d pooling, as in PyTorch.
struct PoolArgs {
  Dims kernel{2, 2}, stride{2, 2}, padding{0, 0}, dilation{1, 1};
  /// ceil_mode: true rounds output sizes up. count_include_pad (average pooling only): true counts padding as zeros.
  bool ceil_mode = false, count_include_pad = true;
};

struct BlockLayout;  // tensor/block_layout.h

/// Options of attention(), see ops.h.
struct AttentionArgs {
  double scale = 1;
  bool causal = false;  ///< true: query i sees keys up to its own position only
  /// With causal: a query sees its own key and the window - 1 keys before it; 0: no limit.
  int64_t window = 0;
  /// Probability of dropping an attention weight; weight (b, h, i, j) is drawn from `key` by its flat index.
  double dropout = 0;
  PhiloxKey key;
  /// If q has only some of the model's heads: the index of its first head, and the number of all heads (0: q has all).
  /// Dropout and the layout depend on them.
  int64_t first_head = 0, all_heads = 0;
  std::shared_ptr<const BlockLayout> layout = {};  ///< the blocks of scores to compute; null: all
};

/// Positions of a shard's elements in the whole tensor: runs of `run` elements, `stride` apart, from `first` on. run 0
/// means that the tensor is not a shard.
struct Region {
  int64_t first = 0, run = 0, stride = 0;
};

/// Options of the norm of residual + dropout(x). p 0: no dropout.
struct AddNormArgs {
  bool centered = true;      ///< true: LayerNorm; false: RMSNorm
  double eps = 1e-5, p = 0;  ///< p: dropout probability
  PhiloxKey key = {};
};

/// Options of cross entropy, see ops.h.
struct CrossEntropyArgs {
  int64_t ignore_index = -100;  ///< rows with this target have loss 0 and no gradient
  double label_smoothing = 0;
  /// True for the gradient of a shard of the classes (vocabulary parallelism). lse then covers the classes of all
  /// shards, and target -1 (if it is not ignore_index) means that the class is on another shard.
  bool elsewhere = false;
};

}  // namespace lockstep
