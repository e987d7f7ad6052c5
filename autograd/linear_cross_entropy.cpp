// The output projection of a language model and its loss, one chunk of rows at a time. The logits of 1024 tokens and
// 50,257 words take 196 MiB, and their gradient as much. Here only the logits of one chunk exist; what remains are the
// gradients of x and of the weight, which the product over all rows would produce too. Rows of logits are padded
// (tensor/padded.h), and nothing reads or writes the padding. On a GPU one chunk most often has room for all rows.
//
// For each chunk: logits = x w^T, the loss of each row, the gradient of the logits in place, and from it the gradient
// of x's rows and a summand of the weight's gradient. The forward pass thus computes gradients for an upstream gradient
// of 1, and backward multiplies them by the actual one (Liger Kernel, Hsu et al. 2024). Backward does not read the
// weight. Wijmans et al., "Cut Your Losses", 2024, go further: they keep tiles in on-chip memory and compute logits
// twice.
//
// With Reduction::none every row has its own upstream gradient, known only to backward, which computes the chunks'
// logits again.
#include <algorithm>
#include <array>
#include <utility>

#include "autograd/loss_common.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "tensor/flops.h"
#include "tensor/memory.h"
#include "tensor/padded.h"
#include "tensor/stored_matrix.h"

namespace lockstep {
namespace {

constexpr const char* const by_rows_name = "linear_cross_entropy";

// Besides its products, every chunk copies the weight twice (into the layout that the products read) and passes once
// over the weight's gradient. The more rows a chunk has, the less this costs: chunks of 256 to 352 rows take 3 to 9 %
// longer than all rows at once, chunks of 512 rows do not.
constexpr int64_t chunk_logits = int64_t(24) << 20, least_rows = 512, multiple_of_rows = 16;
// A chunk's logits may take 1/16 of a GPU's total memory. A share of the free memory would differ from run to run, and
// with it the size of the chunks, on which the bits of the gradients depend.
constexpr int64_t part_for_logits = 16;
constexpr double f16_seed = 4096;  // gradient scale: 1 / 50257 is subnormal in f16

struct ByRows {
  Tensor x, weight;  // operands of the products, of one dtype
  Tensor index, class_weight;
  CrossEntropyArgs args;
  int64_t rows_at_once;

  // An uninitialised tensor in the dtype that gradients are summed in.
  Tensor sums(const Shape& shape) const { return empty(shape, {x.dtype() == f64 ? f64 : f32, x.device()}); }

  /// Writes the loss of each row to `losses` (rows). Writes the gradients, for upstream gradients `upstream` (rows), to
  /// grad_x and grad_w where these are defined.
  void run(const Tensor& losses, const Tensor& upstream, const Tensor& grad_x, const Tensor& grad_w) const {
    const int64_t rows = x.size(0), classes = weight.size(0), step = std::min(rows, rows_at_once);
    if (rows == 0 && grad_w.defined()) grad_w.fill_(0);
    if (rows == 0) return;
    const Tensor room = empty_padded({step, classes}, {x.dtype(), x.device()}), columns = weight.t();
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      const auto of = [&](const Tensor& entire) { return entire.narrow(0, row, count); };
      const Tensor logits = room.narrow(0, 0, count);
      matmul_into(logits, of(x), columns);
      if (!grad_x.defined() && !grad_w.defined()) {
        of(losses).copy_(cross_entropy_rows(logits, of(index), class_weight, args).loss);
        continue;
      }
      // From here on `logits` holds their gradient.
      cross_entropy_rows_into(of(losses), of(upstream), logits, of(index), class_weight, args);
      if (grad_x.defined()) matmul_into(of(grad_x), logits, weight);
      if (grad_w.defined()) matmul_into(grad_w, logits.t(), of(x), row > 0);
    }
  }
};

void check_by_rows(const Variable& x, const Variable& weight, const Tensor& target, const CrossEntropyOptions& options,
                   int64_t rows_at_once) {
  const char* const op = by_rows_name;
  LOCKSTEP_CHECK(x.defined() && weight.defined() && target.defined(), "[", op,
                 "] expected x, weight and target, got an undefined one; create it first");
  LOCKSTEP_CHECK(!stored_in(weight.tensor()), "[", op,
                 "] expected a float weight, got a quantized one; use cross_entropy(linear(x, weight), target)");
  LOCKSTEP_CHECK(
      is_floating(x.dtype()) && is_floating(weight.dtype()) && (x.dtype() == weight.dtype() || Autocast::enabled()),
      "[", op, "] expected x and weight of one floating dtype, got ", x.dtype(), " and ", weight.dtype(),
      "; convert with .to(dtype)");
  LOCKSTEP_CHECK(weight.dim() == 2 && weight.size(0) > 0 && x.dim() >= 1 && x.size(-1) == weight.size(1), "[", op,
                 "] expected x (..., C) and a weight (V, C) with V > 0, got ", x.shape(), " and ", weight.shape());
  LOCKSTEP_CHECK(x.device() == weight.device() && x.device() == target.device(), "[", op,
                 "] expected x, weight and target on one device, got ", x.device(), ", ", weight.device(), " and ",
                 target.device(), "; move them with .to(device)");
  LOCKSTEP_CHECK(target.dtype() == i64 && target.shape() == without_last(x.shape()), "[", op,
                 "] expected class indices i64 ", without_last(x.shape()), " for x ", x.shape(), ", got ",
                 target.dtype(), " ", target.shape(), "; probabilities need cross_entropy(linear(x, weight), target)");
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.shape() == Shape{weight.size(0)}, "[", op,
                 "] expected class weights of shape ", Shape{weight.size(0)}, ", got ", options.weight.shape(),
                 "; correct them");
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.dtype() == x.dtype() || Autocast::enabled(), "[", op,
                 "] expected class weights in ", x.dtype(), ", got ", options.weight.dtype(), "; use .to(dtype)");
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, "[", op,
                 "] expected label_smoothing in [0, 1], got ", options.label_smoothing);
  LOCKSTEP_CHECK(rows_at_once >= 0, "[", op, "] expected rows_at_once >= 0, got ", rows_at_once);
  if (!target.device().is_cpu()) return;
  int64_t row = 0;
  for (const int64_t t : target.to_vector<int64_t>()) {
    LOCKSTEP_CHECK((t >= 0 && t < weight.size(0)) || t == options.ignore_index, "[", op, "] expected targets in [0, ",
                   weight.size(0), "), got ", t, " in row ", row, "; correct the targets");
    ++row;
  }
}

struct ByRowsBackward {
  Saved x, weight, index, class_weight;
  ByRows job;             // without the saved tensors
  Tensor grad_x, grad_w;  // unless Reduction::none: the gradients for an upstream gradient of 1, or of `seed`
  Tensor seed, ignored, divisor;
  CrossEntropyOptions options;
  DType low;  // of the products
  Shape shape;
  std::array<DType, 2> dtypes;  // of x and weight

  void operator()(Backward& back) {
    Tensor scale;
    if (options.reduction == Reduction::none) {
      ByRows again = job;
      again.index = index.get(by_rows_name), again.class_weight = class_weight.get(by_rows_name);
      again.weight = weight.get(by_rows_name).to(low);
      again.x = x.get(by_rows_name).to(low).reshape({-1, again.weight.size(1)}).contiguous();
      grad_x = back.needs(0) ? again.sums(again.x.shape()) : Tensor();
      grad_w = back.needs(1) ? again.sums(again.weight.shape()) : Tensor();
      const Tensor grad = back.grad().reshape({again.x.size(0)}).contiguous();
      again.run(empty_like(grad), grad, grad_x, grad_w);
    } else {
      scale = back.grad();
      if (seed.defined()) scale = div(scale, seed);
      // If all targets are ignored, the gradients are 0, as in cross_entropy().
      if (seed.defined() && divisor.defined()) scale = masked_fill(div(scale, divisor), all(ignored), 0);
    }
    const bool keeps = back.retains() && scale.defined(),
               is_one = scale.defined() && scale.device().is_cpu() && scale.item() == 1;
    const auto give = [&](int i, Tensor& made) {
      if (!back.needs(i)) return;
      const DType dtype = dtypes[size_t(i)];
      Tensor grad = keeps ? made : std::exchange(made, {});
      if (scale.defined() && !is_one && grad.dtype() != dtype) grad = mul_to(grad, scale, dtype);
      else if (scale.defined() && !is_one) grad = keeps ? mul(grad, scale) : mul_(grad, scale);
      else grad = keeps && grad.dtype() == dtype ? grad.clone() : grad.to(dtype);
      back.give(i, i == 0 ? grad.view(shape) : grad);
    };
    give(0, grad_x), give(1, grad_w);
  }
  void operator()(RecordedBackward& back) const {
    back.through({&x, &weight}, [&](const std::vector<Variable>& in) {
      const Variable logits = linear(in[0].to(low), in[1].to(low)).reshape({-1, in[1].size(0)});
      const Variable loss = cross_entropy(logits, index.get(by_rows_name), options);
      return loss.dim() == 0 ? loss : loss.reshape(without_last(shape));
    });
  }
};

}  // namespace

int64_t linear_cross_entropy_rows(int64_t classes, Device device, DType dtype) {
  int64_t logits = chunk_logits;
  if (!device.is_cpu()) {
    const int64_t memory = memory_size(device);
    logits = (memory > 0 ? memory : INT64_MAX) / part_for_logits / size_of(dtype);
    classes = padded_columns(classes);
  }
  const int64_t rows = std::max(least_rows, logits / std::max<int64_t>(classes, 1));
  return rows / multiple_of_rows * multiple_of_rows;
}

Variable linear_cross_entropy(const Variable& x, const Variable& weight, const Tensor& target,
                              const CrossEntropyOptions& options, int64_t rows_at_once) {
  check_by_rows(x, weight, target, options, rows_at_once);
  const int64_t rows = target.numel(), classes = weight.size(0), width = weight.size(1);
  const bool none = options.reduction == Reduction::none, wants = needs_grad({&x, &weight});
  // Under autocast the products read 16-bit casts, but the gradients of x and weight are never rounded to 16 bits.
  const Tensor low_weight = Autocast::low(weight).tensor();
  const Tensor low_x = x.dtype() == low_weight.dtype() ? x.tensor() : x.tensor().to(low_weight.dtype());
  ByRows job{.x = low_x.reshape({rows, width}).contiguous(),
             .weight = low_weight,
             .index = target.reshape({rows}).contiguous(),
             .class_weight = options.weight.defined() ? options.weight.to(low_weight.dtype()).contiguous() : Tensor(),
             .args = {options.ignore_index, options.label_smoothing}};
  job.rows_at_once =
      rows_at_once > 0 ? rows_at_once : linear_cross_entropy_rows(classes, x.device(), low_weight.dtype());
  if (rows_at_once == 0 && rows > job.rows_at_once) {  // chunks of about equal size
    const int64_t chunks = (rows + job.rows_at_once - 1) / job.rows_at_once, even = (rows + chunks - 1) / chunks;
    job.rows_at_once = (even + multiple_of_rows - 1) / multiple_of_rows * multiple_of_rows;
  }
  const bool at_once = wants && !none;
  const Tensor losses = job.sums({rows}), grad_x = at_once && x.requires_grad() ? job.sums({rows, width}) : Tensor(),
               grad_w = at_once && weight.requires_grad() ? job.sums(weight.shape()) : Tensor();
  Tensor ignored, divisor, seed, upstream;
  if (options.reduction == Reduction::mean) {
    ignored = eq(job.index, full({}, options.ignore_index, {i64, target.device()}));
    divisor = divisor_of(job.index, job.class_weight, job.args, losses);
  }
  if (at_once) {
    upstream = constant(1, losses);
    if (job.x.dtype() == f16) {  // f16: backward divides by the divisor instead, in f32
      seed = constant(f16_seed, losses);
      if (job.class_weight.defined())
        seed = div(seed, maximum(amax(abs(job.class_weight)).to(losses.dtype()), constant(1e-30, losses)));
      upstream = seed;
    } else if (divisor.defined()) {
      upstream = div(upstream, divisor);
    }
    upstream = upstream.expand({rows}).contiguous();
  }
  MacCounter::add(rows * classes * width);
  job.run(losses, upstream, grad_x, grad_w);
  Tensor out = none ? losses.view(target.shape()) : sum(losses);
  if (divisor.defined()) out = div(out, divisor);
  if (!wants) return out;
  CrossEntropyOptions as_cast = options;
  as_cast.weight = job.class_weight;
  const Saved index(job.index), class_weight(job.class_weight);
  job.x = job.weight = job.index = job.class_weight = Tensor();  // kept as Saved, with a version check
  ByRowsBackward derivative{.x = x,
                            .weight = weight,
                            .index = index,
                            .class_weight = class_weight,
                            .job = std::move(job),
                            .grad_x = grad_x,
                            .grad_w = grad_w,
                            .seed = seed,
                            .ignored = ignored,
                            .divisor = divisor,
                            .options = as_cast,
                            .low = low_weight.dtype(),
                            .shape = x.shape(),
                            .dtypes = {x.dtype(), weight.dtype()}};
  return record(by_rows_name, {&x, &weight}, std::move(out), std::move(derivative));
}

}  // namespace lockstep
