#pragma once
// Resampling of dims to other sizes: the weights of each output (ResampleAxis), and the operation along the last dims
// of a tensor. The gradient of resampling is resampling with the transposed weights.
#include <vector>

#include "tensor/ops.h"

namespace lockstep {

/// Interpolation, with PyTorch's names: cubic is bicubic, area averages the covered inputs.
enum class Resampling { nearest, nearest_exact, linear, cubic, area };

/// The weights by which PyTorch resamples `in` to `out` elements. scale: the factor that the caller gave for out / in;
/// 0: computed from the sizes. align_corners: the outermost elements keep their places (linear, cubic). antialias: when
/// shrinking, averages over all covered inputs.
ResampleAxis resample_axis(int64_t in, int64_t out, Resampling how, double scale = 0, bool align_corners = false,
                           bool antialias = false);
/// The axis with transposed weights, for the gradient.
ResampleAxis transposed(const ResampleAxis& axis);

/// Resamples x (N, C, ...) with one axis per dim after C, 1 to 3 of them. f16 and bf16 are computed in f32.
Tensor resample(const Tensor& x, const std::vector<ResampleAxis>& axes);

}  // namespace lockstep
