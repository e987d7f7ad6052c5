// Rows with a largest norm, and gradients divided by the frequency of a row. See embedding.h.
#include "extensions/layers/embedding.h"

#include <cmath>
#include <utility>

#include "autograd/recorded.h"
#include "tensor/kernels.h"
#include "tensor/ops_common.h"

namespace lockstep {

namespace {

void check_embedding_options(const EmbeddingOptions& o) {
  LOCKSTEP_CHECK(o.max_norm.value_or(0) >= 0, "[embedding] expected max_norm >= 0, got ", *o.max_norm,
                 "; leave it out for rows of any norm");
  LOCKSTEP_CHECK(o.norm_type > 0, "[embedding] expected norm_type > 0, got ", o.norm_type);
}

/// Scales the rows of `weight` that `index` (n) names, and whose p-norm is above max_norm, down to it, in place. A row
/// that the index has twice is written twice, with the same numbers.
void limit_rows(const Tensor& weight, const Tensor& index, double max_norm, double p) {
  check_writable("embedding", weight);
  const Tensor rows = embedding(weight, index).to(weight.dtype() == f64 ? f64 : f32);
  const Tensor size = std::isinf(p) ? amax(abs(rows), {1}, true)
                      : p == 2      ? sqrt(sum_squares(rows, {1}, true))
                                    : pow_scalar(sum(pow_scalar(abs(rows), p), {1}, true), 1 / p);
  const Tensor scale = where(size > max_norm, max_norm / (size + 1e-7), ones_like(size));
  weight.storage()->bump_version("embedding");
  Tensor table = weight.contiguous();
  kernels::scatter(weight.device(), false, mul(rows, scale).to(weight.dtype()), 0,
                   index.unsqueeze(1).expand({index.numel(), weight.size(1)}).contiguous(), table);
  if (!weight.is_contiguous()) weight.copy_(table);
}

/// 1 / (how often `index` (n) has the row), as (n, 1), in the dtype of `weight`.
Tensor shares(const Tensor& weight, const Tensor& index) {
  const TensorOptions wide{weight.dtype() == f64 ? f64 : f32, weight.device()};
  const Tensor counts = index_add_(zeros({weight.size(0)}, wide), 0, index, ones({index.numel()}, wide));
  return reciprocal(index_select(counts, 0, index)).to(weight.dtype()).unsqueeze(1);
}

}  // namespace

Variable embedding(const Variable& weight, const Tensor& index, const EmbeddingOptions& o, int64_t padding_index) {
  check_embedding_options(o);
  check_defined("embedding", index);
  if (index.numel() == 0) return embedding(weight, index, padding_index);
  const Tensor flat = index.reshape({index.numel()});
  if (o.max_norm) limit_rows(weight.tensor(), flat, *o.max_norm, o.norm_type);
  const Variable rows = embedding(weight, index, padding_index);
  if (!o.scale_grad_by_freq) return rows;
  const Tensor share = shares(weight.tensor(), flat);
  Shape shape = index.shape();
  shape.push_back(1);
  return on_tape("embedding", {&rows}, rows.tensor(),
                 [share = share.reshape(shape)](auto& back) { back.give(0, mul(back.grad(), share)); });
}

namespace nn {

Embedding with_options(Embedding layer, const EmbeddingOptions& options) {
  check_embedding_options(options);
  LOCKSTEP_CHECK(!layer.lookup,
                 "[with_options] expected an Embedding without options, got one whose lookup is "
                 "replaced already; give all options at once");
  layer.lookup = [options, padding = layer.padding_index](const Variable& weight, const Tensor& index) {
    return embedding(weight, index, options, padding);
  };
  return layer;
}

}  // namespace nn

}  // namespace lockstep
