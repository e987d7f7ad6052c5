#pragma once
// Operations on Tensor, without gradients (autograd/ops.h has the same names for Variable). Unless stated otherwise
// each returns a new row-major tensor and checks its arguments first (Error). There is no type promotion: dtypes and
// devices must agree. A negative dim counts from the end. Names that end in _ write into their first argument and
// return it.
#include <complex>
#include <optional>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "tensor/kernel_args.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Dtype and device of a new tensor.
struct TensorOptions {
  DType dtype = f32;
  Device device = default_device();
};

// --- creation (ops_create.cpp): Error when an integer dtype cannot hold a value ---
Tensor empty(const Shape& shape, TensorOptions options = {});  ///< uninitialised memory
Tensor empty_like(const Tensor& x);  ///< uninitialised, row-major, with x's shape, dtype and device
Tensor zeros(const Shape& shape, TensorOptions options = {});               ///< all elements 0
Tensor ones(const Shape& shape, TensorOptions options = {});                ///< all elements 1
Tensor full(const Shape& shape, Scalar value, TensorOptions options = {});  ///< all elements `value`
Tensor zeros_like(const Tensor& x);                                         ///< zeros with x's shape, dtype and device
Tensor ones_like(const Tensor& x);                                          ///< ones with x's shape, dtype and device
Tensor full_like(const Tensor& x, Scalar value);  ///< `value` everywhere, with x's shape, dtype and device
/// start, start + step, ... in [start, end). Integer dtypes are computed exactly. Error for step 0 or a step that leads
/// away from `end`.
Tensor arange(Scalar start, Scalar end, Scalar step = 1, TensorOptions options = {.dtype = i64});
Tensor arange(int64_t end, TensorOptions options = {.dtype = i64});                    ///< 0, 1, ..., end - 1
Tensor linspace(double start, double end, int64_t steps, TensorOptions options = {});  ///< both ends included
Tensor eye(int64_t n, int64_t m = -1, TensorOptions options = {});  ///< (n, m) with ones on the diagonal; m = -1: m = n
Tensor rand(const Shape& shape, TensorOptions options = {});        ///< uniform in [0, 1)
Tensor randn(const Shape& shape, TensorOptions options = {});       ///< standard normal
/// rand() with x's shape, dtype and device.
inline Tensor rand_like(const Tensor& x) { return rand(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
/// randn() with x's shape, dtype and device.
inline Tensor randn_like(const Tensor& x) { return randn(x.shape(), {.dtype = x.dtype(), .device = x.device()}); }
/// Uniform integers in [low, high). Error when the dtype cannot represent all of them exactly.
Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options = {.dtype = i64});
Tensor randperm(int64_t n);  ///< a permutation of 0 .. n - 1: i64, drawn on the CPU, then moved to the default device
Tensor bernoulli(const Shape& shape, double p, TensorOptions options = {});  ///< 1 with probability p, else 0
/// Fills x, which has a floating dtype, with random numbers that are uniform in [low, high).
const Tensor& uniform_(const Tensor& x, double low, double high);
/// Fills x, which has a floating dtype, with normally distributed random numbers.
const Tensor& normal_(const Tensor& x, double mean, double deviation);

// --- all rows LOCKSTEP_OPERATION of operations.def, and those on complex numbers ---
#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/operations.def"
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/complex.def"
#undef Value
/// A tensor with all elements `value`, which must be std::complex<double>. Error unless options.dtype is complex.
template <class T> Tensor full(const Shape& shape, std::complex<T> value, TensorOptions options);

// --- pointwise (ops_pointwise.cpp): all rows of pointwise.def, each also in place as name_() ---
#define LOCKSTEP_UNARY(name, functor, types) \
  Tensor name(const Tensor& x);              \
  const Tensor& name##_(const Tensor& x);
#define LOCKSTEP_UNARY1(name, functor, types, p, d) \
  Tensor name(const Tensor& x, Scalar p d);         \
  const Tensor& name##_(const Tensor& x, Scalar p d);
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e) \
  Tensor name(const Tensor& x, Scalar p d, Scalar q e);   \
  const Tensor& name##_(const Tensor& x, Scalar p d, Scalar q e);
#define LOCKSTEP_BINARY(name, functor, types)    \
  Tensor name(const Tensor& a, const Tensor& b); \
  const Tensor& name##_(const Tensor& a, const Tensor& b);
// A number is compared as x's dtype holds it, or in f64 if that dtype cannot hold it (2.5 for i64).
#define LOCKSTEP_COMPARE(name, functor)          \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& x, Scalar s);
#include "tensor/pointwise.def"
const Tensor& add_(const Tensor& a, const Tensor& b, Scalar alpha);  ///< a += alpha * b
/// mul(a, b).to(dtype) in one pass, for a and b of f32 and a dtype of f16 or bf16.
Tensor mul_to(const Tensor& a, const Tensor& b, DType dtype);
Tensor isnan(const Tensor& x);     ///< bool: true where x is NaN
Tensor isfinite(const Tensor& x);  ///< bool: true where x is neither NaN nor infinite
/// One derivative of a pointwise operation, for autograd: grad times d out / d operand. `part` chooses the operand. May
/// overwrite `grad` if grad.is_exclusive(). a, b: the operands of a binary operation; for a unary one, a is its saved
/// input or output, and b is undefined.
Tensor pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor& grad,
                      const Tensor& a, const Tensor& b);
/// The gradients of both operands of a binary operation.
struct PointwiseGrads {
  Tensor a, b;
};
/// Both gradients of a binary operation in one pass. For operations like mul, where each derivative reads a or b. The
/// gradient of a may be written into the storage of `grad` if grad.is_exclusive().
PointwiseGrads pointwise_grads(PointwiseOp op, const Tensor& grad, const Tensor& a, const Tensor& b);

/// Form of gelu(): exact by erf, or the tanh approximation (Hendrycks and Gimpel, 2016).
enum class Gelu { erf, tanh };
/// x * Phi(x), where Phi is the normal distribution function, in the given form.
inline Tensor gelu(const Tensor& x, Gelu form = Gelu::erf) { return form == Gelu::erf ? gelu_erf(x) : gelu_tanh(x); }

#define Value Tensor
#include "tensor/operators.inc"
#undef Value

// --- reductions (ops_reduce.cpp) ---
/// sum(x, {0}) of a matrix, for bias gradients. On CUDA, all kernels that compute such sums add in the same order.
Tensor column_sums(const Tensor& x);
/// Product over dims (empty: all); integers and bool multiply to i64. Not differentiable: see <lockstep/operations.h>.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Sum of squares over dims (empty: all). dtype of the result: x's (default), or f64.
Tensor sum_squares(const Tensor& x, const Dims& dims = {}, bool keepdim = false, std::optional<DType> dtype = {});
/// bool: true if any element is not 0.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// bool: true if no element is 0.
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Values and their i64 indices along a dim (max_pool2d: i32 positions in the plane).
struct ValuesIndices {
  Tensor values, indices;
};
/// Largest value along a dim and its index (the first of equal values); NaN counts as largest. Error for an empty dim.
ValuesIndices max(const Tensor& x, int64_t dim, bool keepdim = false);
/// Smallest value along a dim and its index, like max(), but NaN counts as smallest.
ValuesIndices min(const Tensor& x, int64_t dim, bool keepdim = false);
/// Index of the largest value, i64, as in max(): along dim, or in the flattened tensor if no dim is given.
Tensor argmax(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
/// Index of the smallest value, i64, as in min(): along dim, or in the flattened tensor if no dim is given.
Tensor argmin(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
ValuesIndices sort(const Tensor& x, int64_t dim = -1, bool descending = false);  ///< stable; NaN counts as largest
/// The k largest (or smallest) elements along a dim, sorted, and their indices.
ValuesIndices topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
bool all_finite(const Tensor& x);  ///< true if no element is NaN or infinite; waits for the device
/// Multiplies all tensors by `factor` in place, the contiguous ones in one kernel call. Returns false if an element was
/// infinite or NaN before. The tensors are floating, on one device.
bool unscale_(const std::vector<Tensor>& tensors, double factor);
/// Sums x down to `shape`, which must broadcast to x's shape: the gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);
/// True if |a - b| <= atol + rtol * |b| for all elements (broadcast). NaN is never close. Floats are compared in f64,
/// integers and bool in i64.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);
/// True if shape, dtype and all bits agree; a NaN equals a NaN with the same bits.
bool equal(const Tensor& a, const Tensor& b);

// --- matrix products (ops_matmul.cpp) ---
/// x (..., width) as a matrix (rows, width). T is Tensor or Variable.
template <class T> T as_matrix(const T& x) {
  return x.dim() == 2 ? x : x.reshape({numel_of(Shape(x.shape().begin(), x.shape().end() - 1)), x.shape().back()});
}
/// Precision of f32 matrix products on CUDA devices: `full` multiplies in f32; `tf32` is faster, and rounds operands to
/// 10 bits of mantissa (NVIDIA TensorFloat-32).
enum class MatmulPrecision : uint8_t { full, tf32 };
/// Sets the precision for all threads; the default is `full`. The CPU always computes in full f32.
void set_float32_matmul_precision(MatmulPrecision precision);
MatmulPrecision float32_matmul_precision();  ///< the precision that is set
/// For autograd: the product of the matrices a and b times the derivative of the activation `op` at its saved input or
/// output `kept`; in one kernel where possible. On the CPU the bits equal those of two separate operations. On CUDA
/// gelu_tanh follows the formula of cuBLASLt, and 16-bit results are rounded once instead of twice.
Tensor matmul_unary_grad(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args,
                         const Tensor& kept);
/// out = a b, or out += a b if `adds`, for matrices. out may have gaps between rows; it shares no storage with a and b.
/// For 16-bit a and b, out may be f32, which avoids all rounding to 16 bits. Not counted by MacCounter (flops.h).
void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b, bool adds = false);
/// activation(x). X is Tensor or Variable.
template <class X> X activated(const X& x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return relu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu_erf: return gelu_erf(x);
    case Activation::silu: return silu(x);
  }
  fail(str("[activated] expected a value of Activation, got number ", int(activation), "; use a named one"));
}
/// activation(x w^T + bias): x (..., in), w (out, in), bias (out) or undefined. `pre`, if given, receives the value
/// before the activation.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {}, Activation activation = Activation::none,
              Tensor* pre = nullptr);
/// residual + x w^T + bias; residual has the shape of the result. 16-bit results are rounded once on the CPU, and on
/// CUDA if there is no bias. With a bias, CUDA may also round before it adds the bias.
Tensor linear_add(const Tensor& residual, const Tensor& x, const Tensor& w, const Tensor& bias = {});
/// linear() that writes its result into `out`, and the value before the activation into `pre` (which may be undefined).
/// Both are contiguous and have as many elements as the result.
void linear_into(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                 const Tensor& pre);

// --- layers (ops_nn.cpp, ops_conv.cpp, ops_attention.cpp) ---
// Functions named *_grad are for autograd: `grad` is the gradient of the output.
/// Gradient of conv2d() with respect to its input.
Tensor conv2d_grad_input(const Tensor& grad, const Tensor& w, const Shape& input_shape, const ConvArgs& args);
/// Result of conv2d_grad_weight(); `bias` is undefined unless with_bias is true.
struct WeightBiasGrad {
  Tensor weight, bias;
};
/// Gradients of conv2d() with respect to its weight and bias.
WeightBiasGrad conv2d_grad_weight(const Tensor& grad, const Tensor& x, const Shape& weight_shape, const ConvArgs& args,
                                  bool with_bias);
/// x (N, C, H, W) -> maxima and their positions h * W + w (i32), both (N, C, P, Q).
ValuesIndices max_pool2d(const Tensor& x, const PoolArgs& args);
/// Gradient of max_pool2d(): adds each output's gradient at the position of its maximum; zeros elsewhere.
Tensor max_pool2d_grad(const Tensor& grad, const Tensor& indices, const Shape& input_shape);
/// Gradient of softmax() (or log_softmax() if `log`) along dim, from its output y.
Tensor softmax_grad(bool log, const Tensor& grad, const Tensor& y, int64_t dim);
/// A norm's output, and the statistics that its gradient needs, in f32 (f64 for an f64 input). rstd is
/// 1 / sqrt(var + eps). RMS norm leaves `mean` undefined.
struct NormResult {
  Tensor out, mean, rstd;
};
/// Layer norm (Ba et al., 2016) over the trailing dims `normalized`; weight and bias have that shape or are undefined.
NormResult layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight = {}, const Tensor& bias = {},
                      double eps = 1e-5);
/// Gradients of a norm. The gradient of an absent weight or bias is undefined.
struct NormGrad {
  Tensor x, weight, bias;
};
/// Gradient of layer_norm(); `saved` is its result.
NormGrad layer_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Shape& normalized,
                         const Tensor& weight, bool with_bias);
/// RMS norm (Zhang and Sennrich, 2019) over the last dim of x (..., C); weight (C) or undefined.
NormResult rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);
/// Gradient of rms_norm(). rstd: from the result of rms_norm().
NormGrad rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight);
/// Batch norm (Ioffe and Szegedy, 2015) of x (N, C, ...); out keeps a channels-last layout. training: normalises by the
/// batch's statistics; running_mean and running_var, if defined, move by `momentum` towards the batch's mean and
/// unbiased variance. Otherwise normalises by the running statistics.
NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                      const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
/// Gradient of batch_norm(); `saved` is its result.
NormGrad batch_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Tensor& weight,
                         bool with_bias, bool training);
/// Loss and log-sum-exp of each row, both (rows), in f32 (f64 for f64 logits).
struct CrossEntropyRows {
  Tensor loss, lse;
};
/// Cross entropy of each row of logits (rows, classes) with target i64 (rows); weight (classes) optional. Rows whose
/// target is args.ignore_index have loss 0. Error for a target outside the classes.
CrossEntropyRows cross_entropy_rows(const Tensor& logits, const Tensor& target, const Tensor& weight = {},
                                    const CrossEntropyArgs& args = {});
/// Writes the losses of cross_entropy_rows() into `loss` (rows) and overwrites `logits` with their gradient, where
/// grad_loss (rows) is the gradient of the losses. Computing both in one pass reads each row only once. loss and each
/// row of logits must be contiguous.
void cross_entropy_rows_into(const Tensor& loss, const Tensor& grad_loss, const Tensor& logits, const Tensor& target,
                             const Tensor& weight, const CrossEntropyArgs& args);
/// Gradient of cross_entropy_rows() with respect to the logits, from the lse that it returned. Overwrites `logits` if
/// `in_place`, else returns a new tensor.
Tensor cross_entropy_rows_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                               const Tensor& weight, const CrossEntropyArgs& args, bool in_place);
/// The divisor of a mean over the rows: the sum of the weights of all targets that are not ignored.
double cross_entropy_weight_sum(const Tensor& target, const Tensor& weight = {}, const CrossEntropyArgs& args = {});
/// Describes a tensor as slice `index` of `count` equal slices of a larger tensor along `dim` (a shard).
struct PartOf {
  int64_t dim = 0, index = 0, count = 1;
};
/// Zeroes elements with probability p and scales the rest by 1 / (1 - p). If x is a shard (`part`), the zeroed elements
/// are those that dropout of the full tensor would zero in this shard.
Tensor dropout(const Tensor& x, double p, PhiloxKey key, const PartOf& part = {});
/// residual + dropout(x) in one pass. The result has the same bits as if the two were computed one after the other.
Tensor add_dropout(const Tensor& residual, const Tensor& x, double p, PhiloxKey key, const PartOf& part = {});
/// The sum of residual and x, and its norm.
struct AddNorm {
  Tensor sum;
  NormResult norm;
};
/// The sum residual + dropout(x), and its norm over the trailing dims `normalized`, in one kernel where possible. No
/// dropout if p is 0. The results have the same bits as if the steps were computed one after the other.
AddNorm add_norm(const Tensor& residual, const Tensor& x, const Shape& normalized, const Tensor& weight,
                 const Tensor& bias, const AddNormArgs& args);
/// Gradients of add_norm(). norm.x is the gradient of the sum, which is also that of the residual.
struct AddNormGrad {
  NormGrad norm;
  Tensor dropped = {};  ///< the gradient of x, through dropout; undefined for p = 0
  Tensor sums = {};     ///< column_sums() of the gradient of x; undefined unless with_sums
};
/// Gradient of add_norm(). `add`, if defined, is the gradient that reaches the sum by other paths. `add` must be
/// contiguous. Overwrites `add` with the total gradient, and returns it as norm.x.
AddNormGrad add_norm_grad(const Tensor& grad, const Tensor& add, const Tensor& sum, const NormResult& saved,
                          const Shape& normalized, const Tensor& weight, bool with_bias, bool with_sums,
                          const AddNormArgs& args);
/// Result of attention(). lse: log-sum-exp of each query's scores, (B, H, T), in f32 (f64 for f64 inputs).
struct AttentionResult {
  Tensor out, lse;
};
/// softmax(q k^T scale + mask) v without forming the T x S matrix. q (B, H, T, D), k and v (B, G, S, D), where G
/// divides H (grouped-query attention). out is (B, H, T, D), laid out as (B, T, H, D), so that merging heads is a view.
/// mask: bool (true = attend) or floating (added), broadcastable to (B, H, T, S). causal: query i attends to keys
/// j <= i + S - T; a window also requires j > i + S - T - window (as in Mistral, Transformers and FlashAttention).
/// scale 0 means 1/sqrt(D). args.layout describes S tokens, and the queries are the last T of these tokens. For a query
/// that attends to no key, out is 0 and lse is -inf.
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask = {},
                          AttentionArgs args = {.scale = 0});
/// The mask of causal attention, bool (queries, keys): true where the query attends to the key. window 0: no window.
Tensor causal_mask(int64_t queries, int64_t keys, int64_t window, Device device);
/// Gradients of q, k and v.
struct AttentionGrad {
  Tensor q, k, v;
};
/// Gradient of attention(); recomputes the scores from q, k and the saved lse.
AttentionGrad attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             const AttentionResult& saved, AttentionArgs args);
/// attention_grad() into given tensors: any views whose last dim has stride 1, for example the three parts of a packed
/// (B, T, 3, H, D) gradient.
void attention_grad_into(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                         const AttentionResult& saved, AttentionArgs args, Tensor& grad_q, Tensor& grad_k,
                         Tensor& grad_v);
/// Rotary position embedding (Su et al., RoFormer, 2021), half-split form: rotates the pair (i, i + D / 2).
/// x (..., T, D), D even; cosine and sine (T, D / 2) in x's dtype or f32. inverse: the opposite rotation, for the
/// gradient.
Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse = false);
/// rotary() for packed heads: x (B, T, heads * D). Rotates the first `turned` heads, and in each the first
/// 2 * cosine.size(1) features. Works in place if x is the only reference to its storage, else on a copy.
Tensor rotary_packed(Tensor x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine,
                     bool inverse = false);

// --- indexing and joining (ops_index.cpp): index tensors are i64. An index out of range is an Error that names it; on
// other devices than the CPU the Error comes at the next synchronisation ---
/// Looks up rows of weight (V, C): the result is (..., C) for an index of shape (...).
Tensor embedding(const Tensor& weight, const Tensor& index);
/// Adds each row of grad (..., C) to the row of grad_weight (V, C) that index (...) names; skips padding_index.
const Tensor& embedding_grad_(const Tensor& grad_weight, const Tensor& grad, const Tensor& index,
                              int64_t padding_index = -1);
/// x[index[i]] += source[i] along dim. index and source have as many dims as x; source is as large as index or larger.
const Tensor& scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// Adds slice i of source to slice index[i] of x along dim; index has one dim.
const Tensor& index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// Writes `value` where mask (bool, broadcast) is true.
const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, Scalar value);

}  // namespace lockstep
