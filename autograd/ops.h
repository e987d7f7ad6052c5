#pragma once
// Differentiable operations: the names of tensor/ops.h, on Variables. Same shapes, same errors; what is not
// differentiable (comparisons, argmax, indices) gives a Tensor. Under Autocast the matrix operations run in 16 bits.
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "tensor/ops.h"

namespace lockstep {

// --- every LOCKSTEP_OPERATION of operations.def ---
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/operations.def"
#undef Value

// --- pointwise: every line of pointwise.def, and its in-place form (ops_pointwise.cpp) ---
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
#define LOCKSTEP_COMPARE(name, functor) Tensor name(const Variable& a, const Variable& b);
#include "tensor/pointwise.def"
inline Variable gelu(const Variable& x, Gelu form = Gelu::erf) {
  return form == Gelu::erf ? gelu_erf(x) : gelu_tanh(x);
}

#define Value Variable
#include "tensor/operators.inc"
#undef Value

// --- reductions (ops_reduce.cpp) ---
struct VariableIndices {
  Variable values;
  Tensor indices;
};
VariableIndices max(const Variable& x, int64_t dim, bool keepdim = false);  ///< the whole gradient to the first place
VariableIndices min(const Variable& x, int64_t dim, bool keepdim = false);
VariableIndices sort(const Variable& x, int64_t dim = -1, bool descending = false);
VariableIndices topk(const Variable& x, int64_t k, int64_t dim = -1, bool largest = true);
inline Tensor argmax(const Variable& x, std::optional<int64_t> dim = {}, bool keepdim = false) {
  return argmax(x.tensor(), dim, keepdim);
}
inline Tensor argmin(const Variable& x, std::optional<int64_t> dim = {}, bool keepdim = false) {
  return argmin(x.tensor(), dim, keepdim);
}

// --- matrix products (ops_matmul.cpp) ---
/// activation(x w^T + bias) as one operation: x (..., in), w (out, in), bias (out) or undefined.
Variable linear(const Variable& x, const Variable& w, const Variable& bias = {},
                Activation activation = Activation::none);
/// residual + linear(x, w, bias): where residual is like the result, in one product, whose sums in f32 it is added to
/// before they are rounded. The gradient of residual is the incoming one itself.
Variable linear_add(const Variable& residual, const Variable& x, const Variable& w, const Variable& bias = {});

// --- layers (ops_nn.cpp) ---
Variable max_pool2d(const Variable& x, const PoolArgs& args);
Variable layer_norm(const Variable& x, const Shape& normalized, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);
Variable rms_norm(const Variable& x, const Variable& weight, double eps = 1e-6);
Variable group_norm(const Variable& x, int64_t groups, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);
/// running_mean and running_var (may be undefined) are moved in place when training.
Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                    const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
/// Zeroes with probability p and scales by 1 / (1 - p); the identity when not training. Keyed by the generator
/// (tensor/random.h). `part`: x is a part of a tensor, of which the whole's elements are dropped.
Variable dropout(const Variable& x, double p, bool training = true, const PartOf& part = {});
Variable dropout(const Variable& x, double p, const PhiloxKey& key, const PartOf& part = {});  ///< a given draw
/// residual + dropout(x), in one pass where both are alike.
Variable add_dropout(const Variable& residual, const Variable& x, double p, bool training = true,
                     const PartOf& part = {});
struct SumAndNorm {
  Variable sum, norm;
  void each_variable(auto&& fn) { fn(sum), fn(norm); }
};
/// add_dropout(residual, x, args.p, training, part), and layer_norm() or rms_norm() of that: the same bits, and on CUDA
/// one kernel forward and one backward, which adds what else reaches the sum.
SumAndNorm add_norm(const Variable& residual, const Variable& x, const Shape& normalized, const Variable& weight,
                    const Variable& bias, const AddNormArgs& args, bool training = true, const PartOf& part = {});
/// softmax(q k^T scale + mask) v without the T x S matrix, forward or backward; see tensor/ops.h.
Variable attention(const Variable& q, const Variable& k, const Variable& v, const Tensor& mask = {},
                   AttentionArgs args = {.scale = 0});
/// The same on packed projections: qkv (B, T, C) is `heads` heads of queries, then kv_heads of keys, then of values (0:
/// as many); gives (B, T, heads * D). One gradient, no copies.
Variable attention_packed(const Variable& qkv, int64_t heads, AttentionArgs args = {.scale = 0, .causal = true},
                          int64_t kv_heads = 0);
Variable rotary(const Variable& x, const Tensor& cosine, const Tensor& sine, bool inverse = false);
/// Of packed projections; see tensor/ops.h. Writes over x where the caller has given its only handle away.
Variable rotary_packed(Variable x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine,
                       bool inverse = false);
Variable embedding(const Variable& weight, const Tensor& index, int64_t padding_index = -1);

// --- recurrent layers (ops_recurrent.cpp) ---
/// Of one layer and direction, PyTorch's shapes. w_project: an LSTM's, or undefined; the biases may be undefined.
struct RecurrentWeights {
  Variable input, hidden, input_bias, hidden_bias, project;
};
struct RecurrentResult {
  Variable out, h, c;  ///< (rows, P), and the last states (B, P) and, of lstm, (B, H)
};
/// A pass over time. x (rows, in): rows step after step (RecurrentArgs). h (B, P), c (B, H): first states. On the CPU
/// one node, with one product for the inputs of all steps; elsewhere composed of other operations.
RecurrentResult recurrent(const RecurrentArgs& args, const Variable& x, const Variable& h, const Variable& c,
                          const RecurrentWeights& weights);

// --- losses (ops_loss.cpp): x first, then target ---
enum class Reduction { none, mean, sum };
struct CrossEntropyOptions {
  Tensor weight;  ///< (classes), optional
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;  ///< mean divides by the weights of the targets not ignored
};
/// logits (N, C) or (N, C, d1, ...) [or (C)]; target i64 class indices (N, d1, ...), or probabilities of logits' shape.
/// Against indices the loss is f32 for 16-bit logits, so that loss scaling does not overflow it.
Variable cross_entropy(const Variable& logits, const Variable& target, const CrossEntropyOptions& options = {});
/// cross_entropy(linear(x, weight), target) whose logits exist for `rows_at_once` rows at a time (0:
/// linear_cross_entropy_rows()), forward and backward: x (..., C), weight (V, C), target i64 (...). mean and sum make
/// the gradients of x and weight in forward, and backward scales them; none makes the logits again in backward. Sums in
/// f32 for 16 bits, rounded once. linear_cross_entropy.cpp says more.
Variable linear_cross_entropy(const Variable& x, const Variable& weight, const Tensor& target,
                              const CrossEntropyOptions& options = {}, int64_t rows_at_once = 0);
int64_t linear_cross_entropy_rows(int64_t classes, Device device = cpu);
Variable nll_loss(const Variable& log_probabilities, const Tensor& target, const CrossEntropyOptions& options = {});
Variable mse_loss(const Variable& x, const Variable& target,
                  Reduction reduction = Reduction::mean);  ///< shapes must agree
Variable l1_loss(const Variable& x, const Variable& target, Reduction reduction = Reduction::mean);
Variable smooth_l1_loss(const Variable& x, const Variable& target, double beta = 1,
                        Reduction reduction = Reduction::mean);
Variable huber_loss(const Variable& x, const Variable& target, double delta = 1, Reduction reduction = Reduction::mean);
Variable bce_with_logits(const Variable& x, const Variable& target, const Tensor& weight = {},
                         const Tensor& pos_weight = {}, Reduction reduction = Reduction::mean);
enum class KlReduction { none, mean, sum, batchmean };
/// target * (log target - x), x being log-probabilities; log_target: target already is a logarithm.
Variable kl_div(const Variable& x, const Variable& target, KlReduction reduction = KlReduction::mean,
                bool log_target = false);

// --- indexing and joining (ops_index.cpp) ---
// Lists in braces are of tensors when all of them are.
inline Tensor cat(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return cat(std::vector<Tensor>(tensors), dim);
}
inline Tensor stack(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return stack(std::vector<Tensor>(tensors), dim);
}
inline Tensor einsum(const std::string& equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::vector<Tensor>(operands));
}

}  // namespace lockstep
