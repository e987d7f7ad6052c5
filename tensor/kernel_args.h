#pragma once
// What kernels are told besides tensors: which function, and its options. The table of kernels is in tensor/kernels.h.
#include <memory>
#include <vector>

#include "tensor/random.h"
#include "tensor/scalar.h"
#include "tensor/shape.h"

namespace lockstep {

enum class PointwiseOp : uint8_t {
#define LOCKSTEP_UNARY(name, functor, types) name,
#define LOCKSTEP_UNARY1(name, functor, types, p, d) name,
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e) name,
#define LOCKSTEP_BINARY(name, functor, types) name,
#define LOCKSTEP_COMPARE(name, functor) name,
#include "tensor/pointwise.def"
  where,    // (cond, a, b)
  addcmul,  // a + p * b * c
  lerp,     // a + p * (b - a)
  count
};

/// Which function of an operation: its value, or the derivative towards operand 0 or 1 times the incoming gradient.
/// The derivative of a unary reads (gradient, saved x or y), of a binary (gradient, a, b).
enum class PointwisePart : uint8_t { value, grad0, grad1 };

struct PointwiseArgs {
  Scalar p = 0, q = 0;
};

enum class ReduceOp : uint8_t { sum, mean, prod, max, min, any, all, sum_squares, logsumexp, var };

enum class Activation : uint8_t { none, relu, gelu_tanh, gelu_erf, silu };

/// out = activation(alpha * a b + beta * c + bias); `pre` (optional, with beta 0) receives the value before the
/// activation.
struct MatmulArgs {
  double alpha = 1, beta = 0;
  Activation activation = Activation::none;
};

struct Quantized;  // tensor/quantized.h
struct Fp8Matrix;  // tensor/fp8.h
/// Of floats in 8 bits (tensor/float8.h).
enum class Fp8Format : uint8_t { e4m3, e5m2 };

/// How x meets a weight in codes. Not dynamic: x as it is, and the weight's values. dynamic (row8): each row of x in
/// 8-bit codes of its own, too, and a product of whole numbers; but what is as large as `threshold` (0: nothing is)
/// stays as it is.
struct QuantMatmulArgs {
  bool dynamic = false;
  double threshold = 0;
  bool whole_columns = false;  ///< what one row has to keep, all do, as bitsandbytes has it: rows depend on each other
  Activation activation = Activation::none;
};

enum class RecurrentCell : uint8_t { tanh, relu, lstm, gru };
/// Blocks of rows that its weights have, one for each gate.
inline int64_t gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

/// A layer's pass over time in one direction. Rows lie step after step: of step t, the first batch[t] sequences, of
/// which no later step has more.
struct RecurrentArgs {
  RecurrentCell cell = RecurrentCell::lstm;
  bool reverse = false;
  std::vector<int64_t> batch;
};

/// Two-dimensional; a 1-d convolution is one with height 1.
struct ConvArgs {
  Dims stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
};

struct PoolArgs {
  Dims kernel{2, 2}, stride{2, 2}, padding{0, 0}, dilation{1, 1};
  bool ceil_mode = false, count_include_pad = true;  // the latter for average pooling only
};

/// How `in` numbers in a row become `out` others: number i is the sum over k < taps of weight[k * out + i] times number
/// first[i] + k; what has weight 0 is not read. Empty lists: they stay as they are.
struct ResampleAxis {
  int64_t in = 1, out = 1, taps = 1;
  std::vector<int32_t> first = {};
  std::vector<double> weight = {};
  bool is_same() const { return first.empty(); }
};
struct ResampleArgs {
  const ResampleAxis &rows, &columns;
};

struct BlockLayout;  // tensor/block_layout.h

struct AttentionArgs {
  double scale = 1;
  bool causal = false;
  int64_t window = 0;  // causal: a query sees its own key and the window - 1 before it; 0: all before it
  double dropout = 0;  // probability; element (b, h, i, j) is keyed by its flat index and `key`
  PhiloxKey key;
  int64_t first_head = 0, all_heads = 0;           // of so many, in dropout's index and in the layout; 0: these are all
  std::shared_ptr<const BlockLayout> layout = {};  // which blocks of scores there are; null: all
};

/// Where the elements of a part lie in the whole tensor: runs of `run` elements, `stride` apart, from `first` on. run
/// 0: it is the whole.
struct Region {
  int64_t first = 0, run = 0, stride = 0;
};

/// Of a norm of a sum of a residual and what dropout leaves of x: p 0 drops nothing.
struct AddNormArgs {
  bool centered = true;  // layer norm; else RMS norm
  double eps = 1e-5, p = 0;
  PhiloxKey key = {};
};

struct CrossEntropyArgs {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  bool elsewhere = false;  // the gradient's: lse is of more columns than are here, and targets of -1 (unless that is
                           // ignore_index) are among the others
};

/// One optimizer step on flat, contiguous f32 (or f64) tensors. `grad` is multiplied by grad_scale first.
struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;       // AdamW: p -= lr * weight_decay * p; else Adam: g += weight_decay * p
  double bias1, bias2;  // 1 - beta^t, or 1
  bool maximize = false;
  double grad_scale = 1;
  bool corrects = false;  // bias1 and bias2 are not always 1
  bool operator==(const AdamArgs&) const = default;
};
struct SgdArgs {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first, maximize = false;
  double grad_scale = 1;
  bool operator==(const SgdArgs&) const = default;
};
struct RmspropArgs {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered, maximize = false;
  double grad_scale = 1;
  bool operator==(const RmspropArgs&) const = default;
};
struct AdagradArgs {
  double lr, eps, weight_decay;  // lr already decayed:
  bool maximize = false;
  double grad_scale = 1;
  double first_lr = 0, lr_decay = 0;  // by that, from this
  bool operator==(const AdagradArgs&) const = default;
};
struct LionArgs {
  double lr, beta1, beta2, weight_decay;
  bool maximize = false;
  double grad_scale = 1;
  bool operator==(const LionArgs&) const = default;
};

}  // namespace lockstep
