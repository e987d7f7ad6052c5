#pragma once
// PyTorch's options of an embedding that few models need: max_norm, norm_type and scale_grad_by_freq.
#include <optional>

#include "nn/linear.h"

namespace lockstep {

/// Options of embedding() and nn::with_options().
struct EmbeddingOptions {
  /// Each row that is looked up and whose norm is larger is first scaled down to it, in place, as in PyTorch.
  std::optional<double> max_norm = {};
  double norm_type = 2;             ///< p of that norm; infinity: the largest |element|
  bool scale_grad_by_freq = false;  ///< true: divide a row's gradient by how often the index has the row
};

/// embedding() with options: index i64 (...), weight (V, C), result (..., C). max_norm writes to weight, in training
/// and in evaluation, without a gradient. Error for max_norm < 0 or norm_type <= 0.
Variable embedding(const Variable& weight, const Tensor& index, const EmbeddingOptions& options,
                   int64_t padding_index = -1);

namespace nn {

/// Gives an Embedding these options:
///   Embedding words = with_options(Embedding({.num = 1000, .dim = 64}), {.max_norm = 1});
/// With max_norm, ranks of DDP that look up different rows limit different rows, as in PyTorch. Tensor parallelism
/// refuses such a layer, and ZeRO 3 refuses writes to its parameters (max_norm).
Embedding with_options(Embedding layer, const EmbeddingOptions& options);

}  // namespace nn

}  // namespace lockstep
