#pragma once
// Rows of numbers as more or fewer ones: how each is made of its neighbours (ResampleAxis), and the operation that does
// so along the last dims of a tensor. Its derivative is the same with the transposed weights.
#include <vector>

#include "tensor/ops.h"

namespace lockstep {

enum class Resampling { nearest, nearest_exact, linear, cubic, area };

/// PyTorch's weights. scale: out / in where the caller said so, 0: by the sizes. align_corners: the outermost numbers
/// stay in their places (linear, cubic). antialias: when there are fewer, each is made of all that it stands for.
ResampleAxis resample_axis(int64_t in, int64_t out, Resampling how, double scale = 0, bool align_corners = false,
                           bool antialias = false);
ResampleAxis transposed(const ResampleAxis& axis);

/// x (N, C, ...) with an axis for each dim behind C, 1 to 3 of them. f16 and bf16 are computed in f32.
Tensor resample(const Tensor& x, const std::vector<ResampleAxis>& axes);

}  // namespace lockstep
