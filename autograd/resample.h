#pragma once
// Images, signals and volumes at other places: interpolate, grid_sample, affine_grid, fold and unfold. Meaning and
// defaults are those of torch.nn.functional. x is (N, C, L), (N, C, H, W) or (N, C, D, H, W).
#include <vector>

#include "autograd/ops.h"
#include "tensor/resample.h"

namespace lockstep {

/// tensor/resample.h, with its derivative.
Variable resample(const Variable& x, const std::vector<ResampleAxis>& axes);

struct InterpolateOptions {
  Dims size = {};                  ///< of the result, for each dim behind C, or one for all; or
  std::vector<double> scale = {};  ///< how many times as large, the same way
  Resampling mode = Resampling::nearest;
  bool align_corners = false;    ///< of linear and cubic: the outermost pixels stay in the corners
  bool antialias = false;        ///< of linear and cubic images: see resample_axis
  bool recompute_scale = false;  ///< places by the sizes, as if `size` had been given
};
/// linear is PyTorch's linear, bilinear or trilinear, by the dims of x; cubic is of images.
Variable interpolate(const Variable& x, const InterpolateOptions& options);

enum class GridPadding { zeros, border, reflection };
struct GridSampleOptions {
  Resampling mode = Resampling::linear;  ///< linear, nearest, or cubic of images
  GridPadding padding = GridPadding::zeros;
  bool align_corners = false;
};
/// x at places of one's own: grid (N, P, Q, 2) of images, (N, O, P, Q, 3) of volumes, in [-1, 1], the last dim's place
/// first. Gives (N, C, P, Q), or (N, C, O, P, Q).
Variable grid_sample(const Variable& x, const Variable& grid, const GridSampleOptions& options = {});
/// Grids of affine maps theta (N, 2, 3) for results of shape (N, C, H, W), or (N, 3, 4) and (N, C, D, H, W).
Variable affine_grid(const Variable& theta, const Shape& shape, bool align_corners = false);

struct UnfoldOptions {
  Dims kernel;
  Dims dilation{1, 1}, padding{0, 0}, stride{1, 1};
};
/// All windows of x (N, C, H, W) as columns: (N, C * kernel, windows). (im2col)
Variable unfold(const Variable& x, const UnfoldOptions& options);
/// Columns (N, C * kernel, windows) added up in images of `size` (H, W). (col2im)
Variable fold(const Variable& columns, const Dims& size, const UnfoldOptions& options);

}  // namespace lockstep
