// Row operations of layers: softmax, norms, cross entropy, dropout. Checks the arguments, then calls kernels on views
// of shape (rows, columns). (Convolution and pooling are in ops_conv.cpp, attention in ops_attention.cpp.)
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"
#include "tensor/padded.h"

namespace lockstep {
namespace {

/// dtype of statistics: f32, also for f16 and bf16, and f64 for f64.
DType statistics_dtype(const Tensor& x) { return x.dtype() == f64 ? f64 : f32; }

/// A new tensor for n statistics of x.
Tensor statistics(const Tensor& x, int64_t n) { return empty({n}, {statistics_dtype(x), x.device()}); }

void check_optional(const char* op, const char* name, const Tensor& tensor, const Tensor& x, const Shape& shape) {
  if (tensor.defined()) check_like(op, name, tensor, x, shape);
}

/// Error unless `tensor` holds n statistics of x, as an earlier call returned them.
void check_statistics(const char* op, const char* name, const Tensor& tensor, const Tensor& x, int64_t n) {
  check_defined(op, tensor);
  LOCKSTEP_CHECK(tensor.dtype() == statistics_dtype(x) && tensor.shape() == Shape{n}, "[", op, "] expected ", name,
                 " of shape ", Shape{n}, " and dtype ", statistics_dtype(x), ", got ", tensor.shape(), " and ",
                 tensor.dtype());
  check_same_device(op, x, tensor);
}

Tensor contiguous_or_undefined(const Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; }

/// x as contiguous (rows, columns), where `columns` trailing elements form a row.
Tensor as_rows(const Tensor& x, int64_t columns) {
  int64_t rows = columns > 0 ? x.numel() / columns : 0;
  return x.contiguous().view({rows, columns});
}

/// x with `dim` and the last dim swapped; the same call swaps them back.
Tensor swap_to_end(const Tensor& x, int dim) { return dim >= x.dim() - 1 ? x : x.transpose(dim, -1); }

Tensor softmax_along(const char* op, bool log, const Tensor& x, int64_t dim) {
  check_floating(op, x);
  const int d = normalize_dim(op, dim, x.dim());
  const Tensor moved = swap_to_end(x, d).contiguous();
  Tensor out = empty_like(moved);
  Tensor rows = as_rows(out, size_at(x, d));
  kernels::softmax(x.device(), log, as_rows(moved, size_at(x, d)), rows);
  return swap_to_end(out, d).contiguous();
}

int64_t check_normalized(const char* op, const Tensor& x, const Shape& normalized) {
  check_floating(op, x);
  const int rank = normalized.rank(), lead = x.dim() - rank;
  const bool fits =
      rank >= 1 && lead >= 0 && std::equal(normalized.begin(), normalized.end(), x.shape().begin() + lead);
  LOCKSTEP_CHECK(fits, "[", op, "] expected x to end in shape ", normalized, ", got ", x.shape(), "; reshape x");
  const int64_t n = numel_of(normalized);
  LOCKSTEP_CHECK(n > 0, "[", op, "] expected a normalized shape with elements, got ", normalized, "; give sizes > 0");
  return n;
}

Tensor flat_or_undefined(const Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous().view({tensor.numel()}) : tensor;
}

// --- batch norm: views (N, C, ...) as (N, C, S), row-major or channels-last like x ---

Tensor channels_to_end(const Tensor& x) {
  Dims order{0};
  for (int d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return x.permute(order);
}

Tensor channels_from_end(const Tensor& x) {
  Dims order{0, x.dim() - 1};
  for (int d = 1; d < x.dim() - 1; ++d) order.push_back(d);
  return x.permute(order);
}

bool lies_channels_last(const Tensor& x) { return !x.is_contiguous() && channels_to_end(x).is_contiguous(); }

Tensor as_planes(const Tensor& x, bool channels_last) {
  int64_t plane = 1;
  for (int d = 2; d < x.dim(); ++d) plane *= x.shape()[d];
  const int64_t images = x.shape()[0], channels = x.shape()[1];
  if (channels_last) return channels_to_end(x).contiguous().view({images, plane, channels}).transpose(1, 2);
  return x.contiguous().view({images, channels, plane});
}

Tensor empty_in_layout(const Tensor& x, bool channels_last) {
  return channels_last ? channels_from_end(empty_like(channels_to_end(x))) : empty_like(x);
}

int64_t check_batch(const char* op, const Tensor& x, bool training) {
  check_floating(op, x);
  LOCKSTEP_CHECK(x.dim() >= 2, "[", op, "] expected x of shape (N, C, ...), got ", x.shape(), "; unsqueeze() it");
  const int64_t channels = x.shape()[1], values = channels > 0 ? x.numel() / channels : 2;
  LOCKSTEP_CHECK(!training || values > 1, "[", op, "] expected more than 1 value per channel when training, got ",
                 values, " in shape ", x.shape(), "; give a larger batch");
  return channels;
}

// --- cross entropy ---

void check_rows(const char* op, const Tensor& logits, const Tensor& target, const Tensor& weight,
                const CrossEntropyArgs& args) {
  check_floating(op, logits);
  check_defined(op, target);
  LOCKSTEP_CHECK(logits.dim() == 2, "[", op, "] expected logits of shape (rows, classes), got ", logits.shape());
  const int64_t rows = logits.shape()[0], classes = logits.shape()[1];
  LOCKSTEP_CHECK(target.dtype() == i64, "[", op, "] expected targets of dtype i64, got ", target.dtype(),
                 "; convert them with .to(i64)");
  LOCKSTEP_CHECK(target.shape() == Shape{rows}, "[", op, "] expected ", rows, " targets for logits ", logits.shape(),
                 ", got shape ", target.shape(), "; reshape or slice them");
  check_same_device(op, logits, target);
  check_optional(op, "weight", weight, logits, {classes});
  LOCKSTEP_CHECK(args.label_smoothing >= 0 && args.label_smoothing <= 1, "[", op,
                 "] expected label_smoothing in [0, 1], got ", args.label_smoothing);
  LOCKSTEP_CHECK(!args.elsewhere || (args.label_smoothing == 0 && !weight.defined()), "[", op,
                 "] expected neither weight nor label_smoothing for a shard of the classes, got ",
                 weight.defined() ? "a weight" : str("label_smoothing ", args.label_smoothing), "; pass neither");
}

/// x with contiguous rows, as the kernels of cross entropy need it. Gaps between the rows may stay.
Tensor with_full_rows(const Tensor& x) { return has_full_rows(x) ? x : x.contiguous(); }

void check_targets(const char* op, const Tensor& target, int64_t classes, const CrossEntropyArgs& args) {
  if (!target.device().is_cpu()) return;  // reading them would stall the device
  const int64_t* t = target.data<int64_t>();
  for (int64_t row = 0; row < target.numel(); ++row) {
    LOCKSTEP_CHECK((t[row] >= 0 && t[row] < classes) || t[row] == args.ignore_index || (args.elsewhere && t[row] == -1),
                   "[", op, "] expected targets in [0, ", classes, "), got ", t[row], " in row ", row,
                   "; correct the targets");
  }
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return softmax_along("softmax", false, x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return softmax_along("log_softmax", true, x, dim); }

Tensor softmax_grad(bool log, const Tensor& grad, const Tensor& y, int64_t dim) {
  check_floating("softmax_grad", y);
  check_like("softmax_grad", "grad", grad, y, y.shape());
  const int d = normalize_dim("softmax_grad", dim, y.dim());
  const int64_t n = size_at(y, d);
  const Tensor moved = swap_to_end(y, d).contiguous();
  Tensor out = empty_like(moved);
  Tensor rows = as_rows(out, n);
  kernels::softmax_grad(y.device(), log, as_rows(swap_to_end(grad, d), n), as_rows(moved, n), rows);
  return swap_to_end(out, d).contiguous();
}

NormResult layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight, const Tensor& bias, double eps) {
  const int64_t n = check_normalized("layer_norm", x, normalized);
  check_optional("layer_norm", "weight", weight, x, normalized);
  check_optional("layer_norm", "bias", bias, x, normalized);
  NormResult result{empty_like(x), statistics(x, x.numel() / n), statistics(x, x.numel() / n)};
  Tensor out = as_rows(result.out, n);
  kernels::layer_norm(x.device(), as_rows(x, n), flat_or_undefined(weight), flat_or_undefined(bias), eps, out,
                      result.mean, result.rstd);
  return result;
}

NormGrad layer_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Shape& normalized,
                         const Tensor& weight, bool with_bias) {
  const int64_t n = check_normalized("layer_norm_grad", x, normalized);
  check_like("layer_norm_grad", "grad", grad, x, x.shape());
  check_optional("layer_norm_grad", "weight", weight, x, normalized);
  check_statistics("layer_norm_grad", "mean", saved.mean, x, x.numel() / n);
  check_statistics("layer_norm_grad", "rstd", saved.rstd, x, x.numel() / n);
  const TensorOptions like{x.dtype(), x.device()};
  NormGrad result{empty_like(x), weight.defined() ? empty(normalized, like) : Tensor(),
                  with_bias ? empty(normalized, like) : Tensor()};
  Tensor grad_x = as_rows(result.x, n), grad_weight = flat_or_undefined(result.weight),
         grad_bias = flat_or_undefined(result.bias);
  kernels::layer_norm_grad(x.device(), as_rows(grad, n), as_rows(x, n), saved.mean, saved.rstd,
                           flat_or_undefined(weight), grad_x, grad_weight, grad_bias);
  return result;
}

NormResult rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_floating("rms_norm", x);
  LOCKSTEP_CHECK(x.dim() >= 1, "[rms_norm] expected at least 1 dim, got a scalar; unsqueeze(0) adds a dim");
  const int64_t n = check_normalized("rms_norm", x, {x.shape().back()});
  check_optional("rms_norm", "weight", weight, x, {n});
  NormResult result{empty_like(x), {}, statistics(x, x.numel() / n)};
  Tensor out = as_rows(result.out, n);
  kernels::rms_norm(x.device(), as_rows(x, n), contiguous_or_undefined(weight), eps, out, result.rstd);
  return result;
}

NormGrad rms_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& rstd, const Tensor& weight) {
  check_floating("rms_norm_grad", x);
  LOCKSTEP_CHECK(x.dim() >= 1, "[rms_norm_grad] expected at least 1 dim, got a scalar; unsqueeze(0) adds a dim");
  const int64_t n = check_normalized("rms_norm_grad", x, {x.shape().back()});
  check_like("rms_norm_grad", "grad", grad, x, x.shape());
  check_optional("rms_norm_grad", "weight", weight, x, {n});
  check_statistics("rms_norm_grad", "rstd", rstd, x, x.numel() / n);
  NormGrad result{empty_like(x), weight.defined() ? empty({n}, {x.dtype(), x.device()}) : Tensor(), {}};
  Tensor grad_x = as_rows(result.x, n);
  kernels::rms_norm_grad(x.device(), as_rows(grad, n), as_rows(x, n), rstd, contiguous_or_undefined(weight), grad_x,
                         result.weight);
  return result;
}

NormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                      const Tensor& running_var, bool training, double momentum, double eps) {
  const int64_t channels = check_batch("batch_norm", x, training);
  check_optional("batch_norm", "weight", weight, x, {channels});
  check_optional("batch_norm", "bias", bias, x, {channels});
  LOCKSTEP_CHECK(running_mean.defined() == running_var.defined(),
                 "[batch_norm] expected both running_mean and running_var, or neither, got one; pass both or neither");
  const bool running = running_mean.defined();
  LOCKSTEP_CHECK(training || running, "[batch_norm] expected running_mean and running_var when not training, got none");
  if (running) {
    for (const Tensor* tensor : {&running_mean, &running_var}) {
      LOCKSTEP_CHECK(tensor->shape() == Shape{channels}, "[batch_norm] expected running statistics of shape ",
                     Shape{channels}, ", got ", tensor->shape(), "; reshape them");
      check_floating("batch_norm", *tensor);
      check_same_device("batch_norm", x, *tensor);
    }
  }
  const bool last = lies_channels_last(x);
  const DType dtype = statistics_dtype(x);
  NormResult result{empty_in_layout(x, last), {}, {}};
  Tensor var;
  if (training) {
    result.mean = statistics(x, channels), result.rstd = statistics(x, channels), var = statistics(x, channels);
  } else {  // copies, because the running statistics may change before the gradient is computed
    result.mean = running_mean.to(dtype).clone();
    result.rstd = rsqrt(add_scalar(running_var.to(dtype), eps));
  }
  Tensor out = as_planes(result.out, last);
  kernels::batch_norm(x.device(), as_planes(x, last), contiguous_or_undefined(weight), contiguous_or_undefined(bias),
                      eps, training, result.mean, result.rstd, var, out);
  if (training && running && channels > 0) {
    const double values = double(x.numel() / channels);
    const Tensor unbiased = mul_scalar(var, values / (values - 1));
    running_mean.copy_(lerp(running_mean.to(dtype), result.mean, momentum));
    running_var.copy_(lerp(running_var.to(dtype), unbiased, momentum));
  }
  return result;
}

NormGrad batch_norm_grad(const Tensor& grad, const Tensor& x, const NormResult& saved, const Tensor& weight,
                         bool with_bias, bool training) {
  const int64_t channels = check_batch("batch_norm_grad", x, training);
  check_like("batch_norm_grad", "grad", grad, x, x.shape());
  check_optional("batch_norm_grad", "weight", weight, x, {channels});
  check_statistics("batch_norm_grad", "mean", saved.mean, x, channels);
  check_statistics("batch_norm_grad", "rstd", saved.rstd, x, channels);
  const bool last = lies_channels_last(x);
  const TensorOptions like{x.dtype(), x.device()};
  NormGrad result{empty_in_layout(x, last), weight.defined() ? empty({channels}, like) : Tensor(),
                  with_bias ? empty({channels}, like) : Tensor()};
  Tensor grad_x = as_planes(result.x, last);
  kernels::batch_norm_grad(x.device(), as_planes(grad, last), as_planes(x, last), contiguous_or_undefined(weight),
                           saved.mean, saved.rstd, training, grad_x, result.weight, result.bias);
  return result;
}

CrossEntropyRows cross_entropy_rows(const Tensor& logits, const Tensor& target, const Tensor& weight,
                                    const CrossEntropyArgs& args) {
  check_rows("cross_entropy", logits, target, weight, args);
  LOCKSTEP_CHECK(
      !args.elsewhere,
      "[cross_entropy] classes on other shards are supported by the gradient only; call cross_entropy_rows_grad()");
  const Tensor t = target.contiguous();
  check_targets("cross_entropy", t, logits.shape()[1], args);
  CrossEntropyRows result{statistics(logits, logits.shape()[0]), statistics(logits, logits.shape()[0])};
  Tensor none;
  kernels::cross_entropy(logits.device(), with_full_rows(logits), t, contiguous_or_undefined(weight), args, none,
                         result.loss, result.lse, none);
  return result;
}

void cross_entropy_rows_into(const Tensor& loss, const Tensor& grad_loss, const Tensor& logits, const Tensor& target,
                             const Tensor& weight, const CrossEntropyArgs& args) {
  check_rows("cross_entropy", logits, target, weight, args);
  check_statistics("cross_entropy", "loss", loss, logits, logits.shape()[0]);
  check_statistics("cross_entropy", "grad_loss", grad_loss, logits, logits.shape()[0]);
  LOCKSTEP_CHECK(!args.elsewhere, "[cross_entropy] got classes on other shards; call cross_entropy_rows_grad()");
  LOCKSTEP_CHECK(has_full_rows(logits) && loss.is_contiguous(),
                 "[cross_entropy] expected contiguous losses and rows of logits to write into, got strides ",
                 loss.strides(), " and ", logits.strides(), "; call contiguous() first");
  const Tensor t = target.contiguous();
  check_targets("cross_entropy", t, logits.shape()[1], args);
  Tensor losses = loss, lse = statistics(logits, logits.shape()[0]), grad = logits;
  kernels::cross_entropy(logits.device(), logits, t, contiguous_or_undefined(weight), args, grad_loss.contiguous(),
                         losses, lse, grad);
  for (const Tensor* written : {&loss, &logits}) written->storage()->bump_version("cross_entropy_rows_into");
}

Tensor cross_entropy_rows_grad(const Tensor& grad_loss, const Tensor& logits, const Tensor& lse, const Tensor& target,
                               const Tensor& weight, const CrossEntropyArgs& args, bool in_place) {
  check_rows("cross_entropy_grad", logits, target, weight, args);
  check_statistics("cross_entropy_grad", "grad_loss", grad_loss, logits, logits.shape()[0]);
  check_statistics("cross_entropy_grad", "lse", lse, logits, logits.shape()[0]);
  LOCKSTEP_CHECK(!in_place || has_full_rows(logits),
                 "[cross_entropy_grad] expected contiguous rows of logits to write into, got strides ",
                 logits.strides(), "; call contiguous() first");
  const Tensor t = target.contiguous();
  check_targets("cross_entropy_grad", t, logits.shape()[1], args);
  const Tensor x = with_full_rows(logits);
  Tensor grad = in_place ? x : is_padded(x) ? empty_padded(x.shape(), {x.dtype(), x.device()}) : empty_like(x);
  kernels::cross_entropy_grad(logits.device(), grad_loss.contiguous(), x, lse.contiguous(), t,
                              contiguous_or_undefined(weight), args, grad);
  if (in_place) logits.storage()->bump_version("cross_entropy_rows_grad");
  return grad;
}

double cross_entropy_weight_sum(const Tensor& target, const Tensor& weight, const CrossEntropyArgs& args) {
  check_defined("cross_entropy_weight_sum", target);
  LOCKSTEP_CHECK(target.dtype() == i64, "[cross_entropy_weight_sum] expected targets of dtype i64, got ",
                 target.dtype(), "; convert them with .to(i64)");
  const std::vector<int64_t> targets = target.to(cpu).to_vector<int64_t>();
  const std::vector<double> weights = weight.defined() ? weight.to(cpu).to_vector<double>() : std::vector<double>();
  double sum = 0;
  for (int64_t t : targets) {
    if (t == args.ignore_index) continue;
    LOCKSTEP_CHECK(weights.empty() || (t >= 0 && t < int64_t(weights.size())),
                   "[cross_entropy_weight_sum] correct the targets to be in [0, ", weights.size(), "), got ", t);
    sum += weights.empty() ? 1 : weights[size_t(t)];
  }
  return sum;
}

namespace {
Tensor dropped_and_added(const Tensor& x, double p, PhiloxKey key, const PartOf& part, const Tensor& residual) {
  check_floating("dropout", x);
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[dropout] expected p in [0, 1], got ", p);
  LOCKSTEP_CHECK(part.count >= 1 && part.index >= 0 && part.index < part.count,
                 "[dropout] expected part.index >= 0 and below part.count, got ", part.index, " of ", part.count);
  check_optional("add_dropout", "a residual", residual, x, x.shape());
  Region place;
  if (part.count > 1) {
    int64_t run = 1;
    for (int d = x.dim() - 1; d >= normalize_dim("dropout", part.dim, x.dim()); --d) run *= x.shape()[d];
    place = {.first = part.index * run, .run = run, .stride = part.count * run};
  }
  Tensor out = empty_like(x);
  if (x.numel() > 0)
    kernels::dropout(x.device(), x.contiguous(), p, key, place, contiguous_or_undefined(residual), out);
  return out;
}
}  // namespace

Tensor dropout(const Tensor& x, double p, PhiloxKey key, const PartOf& part) {
  return dropped_and_added(x, p, key, part, {});
}

Tensor add_dropout(const Tensor& residual, const Tensor& x, double p, PhiloxKey key, const PartOf& part) {
  check_defined("add_dropout", residual);
  return dropped_and_added(x, p, key, part, residual);
}

AddNorm add_norm(const Tensor& residual, const Tensor& x, const Shape& normalized, const Tensor& weight,
                 const Tensor& bias, const AddNormArgs& args) {
  const char* const op = "add_norm";
  const int64_t n = check_normalized(op, x, normalized), rows = x.numel() / n;
  check_like(op, "a residual", residual, x, x.shape());
  check_optional(op, "weight", weight, x, normalized);
  check_optional(op, "bias", bias, x, normalized);
  LOCKSTEP_CHECK(args.p >= 0 && args.p <= 1, "[add_norm] expected p in [0, 1], got ", args.p);
  LOCKSTEP_CHECK(args.centered || !bias.defined(), "[add_norm] expected no bias with an RMS norm, got one; pass none");
  AddNorm result{empty_like(x), {empty_like(x), args.centered ? statistics(x, rows) : Tensor(), statistics(x, rows)}};
  Tensor sum = as_rows(result.sum, n), out = as_rows(result.norm.out, n);
  kernels::add_norm(x.device(), as_rows(x, n), as_rows(residual, n), flat_or_undefined(weight), flat_or_undefined(bias),
                    args, sum, out, result.norm.mean, result.norm.rstd);
  return result;
}

AddNormGrad add_norm_grad(const Tensor& grad, const Tensor& add, const Tensor& sum, const NormResult& saved,
                          const Shape& normalized, const Tensor& weight, bool with_bias, bool with_sums,
                          const AddNormArgs& args) {
  const char* const op = "add_norm_grad";
  const int64_t n = check_normalized(op, sum, normalized);
  check_like(op, "grad", grad, sum, sum.shape());
  check_optional(op, "a gradient to add to", add, sum, sum.shape());
  check_optional(op, "weight", weight, sum, normalized);
  if (args.centered) check_statistics(op, "mean", saved.mean, sum, sum.numel() / n);
  check_statistics(op, "rstd", saved.rstd, sum, sum.numel() / n);
  LOCKSTEP_CHECK(!add.defined() || add.is_contiguous(), "[", op,
                 "] expected a contiguous sum of gradients, got strides ", add.strides(), "; make it contiguous()");
  const auto made = [&](bool wanted) { return wanted ? empty(normalized, {sum.dtype(), sum.device()}) : Tensor(); };
  AddNormGrad result{{add.defined() ? add : empty_like(sum), made(weight.defined()), made(with_bias)},
                     args.p > 0 ? empty_like(sum) : Tensor(),
                     made(with_sums)};
  Tensor grad_x = as_rows(result.norm.x, n), dropped = result.dropped.defined() ? as_rows(result.dropped, n) : Tensor(),
         grad_weight = flat_or_undefined(result.norm.weight), grad_bias = flat_or_undefined(result.norm.bias);
  kernels::add_norm_grad.as(args.centered ? "layer_norm_grad" : "rms_norm_grad", sum.device(), as_rows(grad, n),
                            add.defined() ? grad_x : add, as_rows(sum, n), saved.mean, saved.rstd,
                            flat_or_undefined(weight), args, grad_x, dropped, grad_weight, grad_bias, result.sums);
  if (add.defined()) add.storage()->bump_version(op);
  return result;
}

}  // namespace lockstep
