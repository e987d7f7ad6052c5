#pragma once
// Operations on Tensor, without gradients (autograd/ops.h has the same names for Variable). All give a new row-major
// tensor unless said otherwise; all check their arguments first. Nothing is promoted: dtypes and devices must agree.
// dim counts from the end when negative. Forms ending in _ write into their first argument and return it.
#include <optional>
#include <tuple>
#include <vector>

#include "tensor/kernels.h"
#include "tensor/tensor.h"

namespace lockstep {

struct TensorOptions {
  DType dtype = f32;
  Device device = default_device();
};

// --- creation (ops_create.cpp) ---
Tensor empty(const Shape& shape, TensorOptions options = {});  ///< uninitialised
Tensor empty_like(const Tensor& x);                            ///< row-major
Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});
Tensor full(const Shape& shape, Scalar value, TensorOptions options = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, Scalar value);
Tensor arange(Scalar start, Scalar end, Scalar step = 1, TensorOptions options = {.dtype = i64});  ///< [start, end)
Tensor arange(int64_t end, TensorOptions options = {.dtype = i64});
Tensor linspace(double start, double end, int64_t steps, TensorOptions options = {});  ///< both ends included
Tensor eye(int64_t n, int64_t m = -1, TensorOptions options = {});
Tensor rand(const Shape& shape, TensorOptions options = {});   ///< uniform in [0, 1)
Tensor randn(const Shape& shape, TensorOptions options = {});  ///< standard normal
Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options = {.dtype = i64});  ///< [low, high)
Tensor randperm(int64_t n);  ///< i64, drawn on the CPU, then moved to the default device
Tensor bernoulli(const Shape& shape, double p, TensorOptions options = {});  ///< 1 with probability p
const Tensor& uniform_(const Tensor& x, double low, double high);
const Tensor& normal_(const Tensor& x, double mean, double deviation);

// --- every LOCKSTEP_OPERATION of operations.def ---
#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/operations.def"
#undef Value

// --- pointwise (ops_pointwise.cpp): every line of pointwise.def, and its in-place form ---
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
#define LOCKSTEP_COMPARE(name, functor) Tensor name(const Tensor& a, const Tensor& b);
#include "tensor/pointwise.def"
const Tensor& add_(const Tensor& a, const Tensor& b, Scalar alpha);  ///< a += alpha * b
Tensor mul_to(const Tensor& a, const Tensor& b, DType dtype);        ///< mul(a, b).to(f16 or bf16) of f32, in one pass
Tensor isnan(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// Part of a pointwise operation's derivative, for autograd: gradient times d out / d operand. May reuse `grad`'s
/// storage when it is exclusive.
Tensor pointwise_grad(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor& grad,
                      const Tensor& a, const Tensor& b);
struct PointwiseGrads {
  Tensor a, b;
};
/// Both parts of the derivative of an operation of two operands that each part reads, in one pass. The first may take
/// `grad`'s storage when it is exclusive.
PointwiseGrads pointwise_grads(PointwiseOp op, const Tensor& grad, const Tensor& a, const Tensor& b);

enum class Gelu { erf, tanh };
inline Tensor gelu(const Tensor& x, Gelu form = Gelu::erf) { return form == Gelu::erf ? gelu_erf(x) : gelu_tanh(x); }

#define Value Tensor
#include "tensor/operators.inc"
#undef Value

// --- reductions (ops_reduce.cpp) ---
Tensor sum_squares(const Tensor& x, const Dims& dims = {}, bool keepdim = false,
                   std::optional<DType> dtype = {});  ///< dtype: x's, or f64
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
struct ValuesIndices {
  Tensor values, indices;
};
ValuesIndices max(const Tensor& x, int64_t dim, bool keepdim = false);  ///< first place on ties
ValuesIndices min(const Tensor& x, int64_t dim, bool keepdim = false);
Tensor argmax(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
ValuesIndices sort(const Tensor& x, int64_t dim = -1, bool descending = false);  ///< stable
ValuesIndices topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);
bool all_finite(const Tensor& x);
/// Multiplies tensors of one device in place, all at once; false when an element was infinite or NaN before.
bool unscale_(const std::vector<Tensor>& tensors, double factor);
/// Sums x down to `shape`, which broadcasts to x's shape.
Tensor sum_to(const Tensor& x, const Shape& shape);
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);
bool equal(const Tensor& a, const Tensor& b);  ///< same shape, dtype and values bit for bit (NaN equals itself)

// --- matrix products (ops_matmul.cpp) ---
/// (..., width) as a matrix: of a Tensor or a Variable.
template <class T> T as_matrix(const T& x) {
  return x.dim() == 2 ? x : x.reshape({numel_of(Shape(x.shape().begin(), x.shape().end() - 1)), x.shape().back()});
}
/// How f32 products are computed where the device has a faster way: exactly, or with operands rounded to tf32's 10 bits
/// of mantissa.
enum class MatmulPrecision : uint8_t { full, tf32 };
void set_float32_matmul_precision(
    MatmulPrecision precision);  ///< for all threads; full until said otherwise. The CPU is always exact
MatmulPrecision float32_matmul_precision();
/// pointwise_grad(op, grad0, args, matmul(a, b), kept, {}) of matrices; one pass where the kernels can. Bit for bit on
/// the CPU; on CUDA of gelu_tanh by the library's own formula, and in 16 bits rounded once less. For autograd.
Tensor matmul_unary_grad(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args,
                         const Tensor& kept);
struct MatmulRowSums {
  Tensor product, sums;
};
/// a b and sum(a, {1}) of matrices, in one pass where the kernels can: gradients of a linear layer.
MatmulRowSums matmul_row_sums(const Tensor& a, const Tensor& b);
/// out = a b, or out + a b when `adds`: matrices, out (M, N) contiguous and no view of a or b. Of 16-bit a and b it may
/// be f32, and then nothing is rounded. Not counted as work (flops.h).
void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b, bool adds = false);
/// activation(x), of a Tensor or a Variable.
template <class X> X activated(const X& x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return relu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::gelu_erf: return gelu_erf(x);
    case Activation::silu: return silu(x);
  }
  fail("[activated] expected a known activation");
}
/// activation(x w^T + bias): x (..., in), w (out, in), bias (out) or undefined. `pre`, when given, gets the value
/// before the activation.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {}, Activation activation = Activation::none,
              Tensor* pre = nullptr);
/// residual + x w^T + bias, with a residual like the result. On CUDA, and on the CPU in 16 bits, rounded once.
Tensor linear_add(const Tensor& residual, const Tensor& x, const Tensor& w, const Tensor& bias = {});
/// activation(x w^T + bias) into contiguous memory of as many elements; pre may be undefined.
void linear_into(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                 const Tensor& pre);

// --- layers (ops_nn.cpp) ---
Tensor conv2d_grad_input(const Tensor& grad, const Tensor& w, const Shape& input_shape, const ConvArgs& args);
struct WeightBiasGrad {
  Tensor weight, bias;
};
WeightBiasGrad conv2d_grad_weight(const Tensor& grad, const Tensor& x, const Shape& weight_shape, const ConvArgs& args,
                                  bool with_bias);
ValuesIndices max_pool2d(const Tensor& x, const PoolArgs& args);
Tensor max_pool2d_grad(const Tensor& grad, const Tensor& indices, const Shape& input_shape);
Tensor avg_pool2d_grad(const Tensor& grad, const Shape& input_shape, const PoolArgs& args);
Tensor adaptive_avg_pool2d_grad(const Tensor& grad, const Shape& input_shape);
Tensor softmax_grad(bool log, const Tensor& grad, const Tensor& y, int64_t dim);
struct NormResult {
  Tensor out, mean, rstd;
};
/// Normalises over the trailing dims that `weight_shape` covers.
NormResult layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight = {}, const Tensor& bias = {},
                      double eps = 1e-5);
struct NormGrad {
  Tensor x, weight, bias;
};
NormGrad layer_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Shape& normalized,
                         const Tensor& weight, bool with_bias);
NormResult rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-6);  ///< over the last dim
NormGrad rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight);
/// x (N, C, ...); out has x's layout when that is channels-last. training: statistics of the batch, and running_mean /
/// running_var (unbiased) move by `momentum`.
NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                      const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
NormGrad batch_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Tensor& weight,
                         bool with_bias, bool training);
struct CrossEntropyRows {
  Tensor loss, lse;
};  ///< both (rows)
CrossEntropyRows cross_entropy_rows(const Tensor& logits, const Tensor& target, const Tensor& weight = {},
                                    const CrossEntropyArgs& args = {});
/// The same into `loss` (rows), and their gradient for grad_loss (rows) in the logits' place: each row is read once.
void cross_entropy_rows_into(const Tensor& loss, const Tensor& grad_loss, const Tensor& logits, const Tensor& target,
                             const Tensor& weight, const CrossEntropyArgs& args);
/// Writes into `logits` when `in_place`, else into a new tensor.
Tensor cross_entropy_rows_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                               const Tensor& weight, const CrossEntropyArgs& args, bool in_place);
/// What a mean over the rows divides by: the sum of the weights of the targets that are not ignored.
double cross_entropy_weight_sum(const Tensor& target, const Tensor& weight = {}, const CrossEntropyArgs& args = {});
/// That a tensor is the index-th of `count` equal parts of one cut along `dim`.
struct PartOf {
  int64_t dim = 0, index = 0, count = 1;
};
/// Drops what the whole tensor would lose in this part of it.
Tensor dropout(const Tensor& x, double p, PhiloxKey key, const PartOf& part = {});
/// residual + dropout(x), one after the other, in one pass.
Tensor add_dropout(const Tensor& residual, const Tensor& x, double p, PhiloxKey key, const PartOf& part = {});
struct AddNorm {
  Tensor sum;
  NormResult norm;
};
/// residual + dropout(x) (p 0: x itself) and its norm over the trailing dims `normalized`, in one pass where the
/// kernels can; the bits of one after the other.
AddNorm add_norm(const Tensor& residual, const Tensor& x, const Shape& normalized, const Tensor& weight,
                 const Tensor& bias, const AddNormArgs& args);
struct AddNormGrad {
  NormGrad norm;
  Tensor dropped;  ///< p > 0: what dropout leaves of norm.x
};
/// Of its norm. `add`, where defined, is contiguous and gets the gradient of the sum added: it is norm.x then.
AddNormGrad add_norm_grad(const Tensor& grad, const Tensor& add, const Tensor& sum, const NormResult& saved,
                          const Shape& normalized, const Tensor& weight, bool with_bias, const AddNormArgs& args);
struct AttentionResult {
  Tensor out, lse;
};
/// softmax(q k^T scale + mask) v without the T x S matrix. q (B, H, T, D), k v (B, G, S, D). out is (B, H, T, D), laid
/// out as (B, T, H, D) so that merging heads is a view. mask: bool (true = attend) or floating (added), broadcastable
/// to (B, H, T, S). causal: query i sees keys j <= i + S - T, with a window only those > i + S - T - window (Mistral's,
/// as Transformers and FlashAttention count it). scale 0 means 1/sqrt(D). A layout is of the S keys, and the queries
/// are its last; a query that attends to nothing gives zeros, and lse -inf.
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask = {},
                          AttentionArgs args = {.scale = 0});
/// What a query of causal attention sees: bool (queries, keys).
Tensor causal_mask(int64_t queries, int64_t keys, int64_t window, Device device);
struct AttentionGrad {
  Tensor q, k, v;
};
AttentionGrad attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             const AttentionResult& saved, AttentionArgs args);
/// The same into given tensors, any views with D of stride 1: the three parts of a packed (B, T, 3, H, D) gradient,
/// say.
void attention_grad_into(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                         const AttentionResult& saved, AttentionArgs args, Tensor& grad_q, Tensor& grad_k,
                         Tensor& grad_v);
/// Rotary position embedding (Su et al., RoFormer; half-split form). x (..., T, D), cosine and sine (T, D / 2) of x's
/// dtype or f32.
Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse = false);
/// The same for the first `turned` of the heads of x (B, T, heads * D), and of each the first features, as many as the
/// tables are for. Over x when its caller gives it away and nobody else holds it.
Tensor rotary_packed(Tensor x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine,
                     bool inverse = false);

// --- indexing and joining (ops_index.cpp): index tensors are i64; out-of-range values are named in the Error ---
Tensor embedding(const Tensor& weight, const Tensor& index);
const Tensor& embedding_grad_(const Tensor& grad_weight, const Tensor& grad, const Tensor& index,
                              int64_t padding_index = -1);  ///< adds
const Tensor& scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
const Tensor& index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, Scalar value);
Tensor one_hot(const Tensor& index, int64_t classes = -1);  ///< i64, (..., classes)

}  // namespace lockstep
