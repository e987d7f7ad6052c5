#pragma once
// Differentiable operations on Variables: those of tensor/ops.h, with the same names, shapes and errors. Results
// without a derivative (comparisons, argmax, indices) are Tensors. Under Autocast matrix operations run in 16 bits.
#include <vector>

#include "autograd/variable.h"
#include "tensor/ops.h"

namespace lockstep {

// --- the operations of tensor/operations.def and complex.def, which also describe them ---
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/operations.def"
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/complex.def"
#undef Value

// --- pointwise: every row of pointwise.def, and its in-place form (ops_pointwise.cpp) ---
#define LOCKSTEP_UNARY(name, functor, types) \
  Variable name(const Variable& x);          \
  Variable& name##_(Variable& x);
#define LOCKSTEP_UNARY1(name, functor, types, p, d) \
  Variable name(const Variable& x, Scalar p d);     \
  Variable& name##_(Variable& x, Scalar p d);
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e)   \
  Variable name(const Variable& x, Scalar p d, Scalar q e); \
  Variable& name##_(Variable& x, Scalar p d, Scalar q e);
#define LOCKSTEP_BINARY(name, functor, types)          \
  Variable name(const Variable& a, const Variable& b); \
  Variable& name##_(Variable& a, const Variable& b);
#define LOCKSTEP_COMPARE(name, functor)              \
  Tensor name(const Variable& a, const Variable& b); \
  inline Tensor name(const Variable& x, Scalar s) { return name(x.tensor(), s); }
#include "tensor/pointwise.def"
/// GELU, exact (erf) or by its tanh approximation.
inline Variable gelu(const Variable& x, Gelu form = Gelu::erf) {
  return form == Gelu::erf ? gelu_erf(x) : gelu_tanh(x);
}

#define Value Variable
#include "tensor/operators.inc"
#undef Value

// --- reductions (ops_reduce.cpp) ---
/// Values that an operation picks or sorts along a dim, and their positions in that dim (i64).
struct VariableIndices {
  Variable values;
  Tensor indices;
};
/// Maxima along `dim`; of equal values the first one gets the gradient.
VariableIndices max(const Variable& x, int64_t dim, bool keepdim = false);
/// Minima along `dim`; of equal values the first one gets the gradient.
VariableIndices min(const Variable& x, int64_t dim, bool keepdim = false);
/// x sorted along `dim`; `indices` are the positions that the values had in x.
VariableIndices sort(const Variable& x, int64_t dim = -1, bool descending = false);
/// The k largest (or smallest) values along `dim`, sorted.
VariableIndices topk(const Variable& x, int64_t k, int64_t dim = -1, bool largest = true);
/// Position of the maximum along `dim`, or in the flattened tensor if no `dim` is given. Not differentiable.
inline Tensor argmax(const Variable& x, std::optional<int64_t> dim = {}, bool keepdim = false) {
  return argmax(x.tensor(), dim, keepdim);
}
/// Position of the minimum along `dim`, or in the flattened tensor if no `dim` is given. Not differentiable.
inline Tensor argmin(const Variable& x, std::optional<int64_t> dim = {}, bool keepdim = false) {
  return argmin(x.tensor(), dim, keepdim);
}

// --- matrix products (ops_matmul.cpp) ---
/// activation(x w^T + bias) in one kernel call: x (..., in), w (out, in), bias (out) or undefined.
Variable linear(const Variable& x, const Variable& w, const Variable& bias = {},
                Activation activation = Activation::none);
/// linear(x, w). Rows of the result begin a multiple of 64 elements apart (padded.h): fast for any size of vocabulary.
Variable linear_padded(const Variable& x, const Variable& w);
/// residual + linear(x, w, bias). One matrix product computes the whole sum if residual has the shape, dtype and device
/// of the result. The gradient of residual is the incoming gradient.
Variable linear_add(const Variable& residual, const Variable& x, const Variable& w, const Variable& bias = {});

// --- layers (ops_nn.cpp) ---
/// Maximum of each window of x (N, C, H, W); padding counts as -inf.
Variable max_pool2d(const Variable& x, const PoolArgs& args);
/// max_pool2d() with the positions of the maxima: i64, h * W + w (PyTorch's return_indices).
VariableIndices max_pool2d_indices(const Variable& x, const PoolArgs& args);
/// Gradient of conv2d() with respect to its weight, as an operation that has derivatives itself.
Variable conv2d_grad_weight_of(const Variable& g, const Variable& x, const Shape& w_shape, const ConvArgs& args);
/// (x - mean) / sqrt(var + eps) * weight + bias over the trailing dims `normalized`, which is also the shape of weight
/// and bias. Ba, Kiros and Hinton, 2016.
Variable layer_norm(const Variable& x, const Shape& normalized, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dim. Zhang and Sennrich, 2019.
Variable rms_norm(const Variable& x, const Variable& weight, double eps = 1e-6);
/// Normalises each channel of x (N, C, ...): by the statistics of the batch when training, else by the running ones.
/// When training, running_mean and running_var (may be undefined) are updated in place. Ioffe and Szegedy, 2015.
Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                    const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
/// Zeroes elements with probability p and scales the others by 1 / (1 - p). Returns x if not training. Each call makes
/// a new random choice, with the generator of this thread. If x is a part of a larger tensor, `part` says which part:
/// the elements zeroed are those that dropout of the whole tensor would zero.
Variable dropout(const Variable& x, double p, bool training = true, const PartOf& part = {});
/// dropout() that draws its random numbers from `key`, so that two calls with one key zero the same elements.
Variable dropout(const Variable& x, double p, const PhiloxKey& key, const PartOf& part = {});
/// residual + dropout(x); one kernel when both have the same shape and dtype.
Variable add_dropout(const Variable& residual, const Variable& x, double p, bool training = true,
                     const PartOf& part = {});
/// The results of add_norm().
struct SumAndNorm {
  Variable sum, norm;
  /// Calls fn for both variables.
  void each_variable(auto&& fn) { fn(sum), fn(norm); }
};
/// Returns sum = add_dropout(residual, x, args.p, training, part) and norm = layer_norm() or rms_norm() of sum, bit for
/// bit as these functions do. On CUDA one kernel computes both results. Another one computes all gradients; it also
/// adds the gradient that `sum` gets from the other operations that read it.
SumAndNorm add_norm(const Variable& residual, const Variable& x, const Shape& normalized, const Variable& weight,
                    const Variable& bias, const AddNormArgs& args, bool training = true, const PartOf& part = {});
/// softmax(q k^T scale + mask) v. Never holds the matrix of scores (queries x keys), neither forward nor backward.
Variable attention(const Variable& q, const Variable& k, const Variable& v, const Tensor& mask = {},
                   AttentionArgs args = {.scale = 0});
/// attention() on projections in one tensor. qkv (batch, tokens, features) holds `heads` query heads, then kv_heads key
/// heads, then kv_heads value heads; kv_heads = 0 means `heads`. Returns (batch, tokens, heads * features of a head).
Variable attention_packed(const Variable& qkv, int64_t heads, AttentionArgs args = {.scale = 0, .causal = true},
                          int64_t kv_heads = 0);
/// Rotary position embedding: rotates pairs of features of x by the angles of cosine and sine; see tensor/ops.h.
Variable rotary(const Variable& x, const Tensor& cosine, const Tensor& sine, bool inverse = false);
/// rotary() on the first `turned` heads of x (batch, tokens, heads * features). Overwrites x if nobody else holds it.
Variable rotary_packed(Variable x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine,
                       bool inverse = false);
/// Looks up the rows `index` of weight (vocabulary, features). Row padding_index gets no gradient; -1: every row does.
Variable embedding(const Variable& weight, const Tensor& index, int64_t padding_index = -1);

// --- losses (ops_loss.cpp): the prediction first, then the target ---
/// How a loss combines the losses of the elements.
enum class Reduction { none, mean, sum };
/// Options of cross_entropy().
struct CrossEntropyOptions {
  Tensor weight = {};  ///< class weights (classes); optional
  /// Targets with this value are skipped.
  int64_t ignore_index = -100;
  /// Share of the target probability that is spread evenly over all classes, in [0, 1].
  double label_smoothing = 0;
  /// mean divides by the sum of the weights of the targets that are not ignored
  Reduction reduction = Reduction::mean;
};
/// Cross entropy of softmax(logits). logits (N, C), (N, C, d1, ...) or (C); target: i64 class indices (N, d1, ...), or
/// probabilities of the logits' shape. With indices and 16-bit logits the loss is f32, so that loss scaling does not
/// overflow it.
Variable cross_entropy(const Variable& logits, const Variable& target, const CrossEntropyOptions& options = {});
/// cross_entropy(linear(x, weight), target), forward and backward, with the logits of only `rows_at_once` rows in
/// memory at a time (0: linear_cross_entropy_rows() decides). x (..., features), weight (vocabulary, features), target
/// i64 (...). For reductions mean and sum, forward already computes the gradients of x and weight, and backward scales
/// them. For none, backward computes the logits again.
Variable linear_cross_entropy(const Variable& x, const Variable& weight, const Tensor& target,
                              const CrossEntropyOptions& options = {}, int64_t rows_at_once = 0);
/// The default of rows_at_once in linear_cross_entropy(), at least 512. On the CPU these rows have about 24 million
/// logits, since larger chunks are not faster. On a GPU the logits of these rows fill a sixteenth of the memory, most
/// often enough for all rows. Each chunk of rows reads and writes the weight's gradient once, so few chunks are better.
int64_t linear_cross_entropy_rows(int64_t classes, Device device = cpu, DType dtype = f32);
/// (x - target)^2. Shapes must agree.
Variable mse_loss(const Variable& x, const Variable& target, Reduction reduction = Reduction::mean);

// --- indexing and joining (ops_index.cpp) ---
// These overloads take a braced list of Tensors. They return a Tensor, and record nothing.
/// Joins tensors along an existing dim.
inline Tensor cat(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return cat(std::vector<Tensor>(tensors), dim);
}
/// Joins tensors of one shape along a new dim.
inline Tensor stack(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return stack(std::vector<Tensor>(tensors), dim);
}

}  // namespace lockstep
