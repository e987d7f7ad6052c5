#pragma once
// Resampling of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W): interpolate, grid_sample,
// affine_grid, fold and unfold, and layers of them. Meaning and defaults are as in torch.nn.functional.
#include <vector>

#include "autograd/ops.h"
#include "extensions/vision/kernels.h"
#include "nn/module.h"

namespace lockstep {

/// Interpolation, with PyTorch's names: cubic is bicubic, area averages the covered inputs.
enum class Resampling { nearest, nearest_exact, linear, cubic, area };

/// The weights by which PyTorch resamples `in` to `out` elements. scale: the factor that the caller gave for out / in;
/// 0: computed from the sizes. align_corners: the outermost elements keep their places (linear, cubic). antialias: when
/// shrinking, averages over all covered inputs.
ResampleAxis resample_axis(int64_t in, int64_t out, Resampling method, double scale = 0, bool align_corners = false,
                           bool antialias = false);
/// The axis with transposed weights, for the gradient.
ResampleAxis transposed(const ResampleAxis& axis);

/// Resamples x (N, C, ...) with one axis per dim after C, 1 to 3 of them. f16 and bf16 are computed in f32.
Tensor resample(const Tensor& x, const std::vector<ResampleAxis>& axes);
Variable resample(const Variable& x, const std::vector<ResampleAxis>& axes);

/// Options of interpolate(): exactly one of size and scale is set.
struct InterpolateOptions {
  Dims size = {};                  ///< output size for each dim after C, or one for all
  std::vector<double> scale = {};  ///< factor for each dim after C, or one for all
  Resampling mode = Resampling::nearest;
  /// True: the centres of the corner pixels of input and output coincide. For modes linear and cubic.
  bool align_corners = false;
  bool antialias = false;        ///< true (linear and cubic images): filter before downsampling, see resample_axis()
  bool recompute_scale = false;  ///< true: derive the scale from the sizes, even if a scale factor was given
};
/// Resizes x. Mode linear is PyTorch's linear, bilinear or trilinear for 1, 2 or 3 dims after C. Cubic is for images.
Variable interpolate(const Variable& x, const InterpolateOptions& options);

/// The value at a position outside the input: zero, the nearest border pixel, or the input reflected at its border.
enum class GridPadding { zeros, border, reflection };
/// Options of grid_sample().
struct GridSampleOptions {
  Resampling mode = Resampling::linear;  ///< linear or nearest; cubic for images only
  GridPadding padding = GridPadding::zeros;
  bool align_corners = false;
};
/// Samples x at the positions in `grid`: (x, y) in grid (N, P, Q, 2) for images, (x, y, z) in grid (N, O, P, Q, 3) for
/// volumes. -1 and 1 are the edges of the input. Returns (N, C, P, Q) or (N, C, O, P, Q).
Variable grid_sample(const Variable& x, const Variable& grid, const GridSampleOptions& options = {});
/// Sampling grids of the affine maps theta: (N, 2, 3) for a shape (N, C, H, W), (N, 3, 4) for (N, C, D, H, W).
Variable affine_grid(const Variable& theta, const Shape& shape, bool align_corners = false);

/// The windows that unfold() and fold() move over an image. Each option is a pair (height, width).
struct UnfoldOptions {
  Dims kernel;
  Dims dilation{1, 1}, padding{0, 0}, stride{1, 1};
};
/// All windows of x (N, C, H, W) as columns: (N, C * kernel height * kernel width, windows). Also called im2col.
Variable unfold(const Variable& x, const UnfoldOptions& options);
/// Adds columns (N, C * kernel height * kernel width, windows) into images of `size` (H, W). Also called col2im.
Variable fold(const Variable& columns, const Dims& size, const UnfoldOptions& options);

namespace nn {

/// Resizes x (N, C, ...) with 1 to 3 spatial dims by interpolation.
struct Upsample : Layer<Upsample> {
  using Options = InterpolateOptions;
  explicit Upsample(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return interpolate(x, o); }
  Options o;
};

/// Extracts sliding windows: x (N, C, H, W) gives (N, C * kernel size, number of windows).
struct Unfold : Layer<Unfold> {
  using Options = UnfoldOptions;
  explicit Unfold(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return unfold(x, o); }
  std::string options() const override { return str("kernel ", o.kernel, ", stride ", o.stride); }
  Options o;
};

/// Inverse of Unfold, with overlaps added: x (N, C * kernel size, number of windows) gives (N, C, size...).
struct Fold : Layer<Fold> {
  struct Options {
    Dims size, kernel;
    Dims dilation{1, 1}, padding{0, 0}, stride{1, 1};
  };
  explicit Fold(const Options& options) : o(options) {}
  Variable forward(const Variable& x) {
    return fold(x, o.size, {.kernel = o.kernel, .dilation = o.dilation, .padding = o.padding, .stride = o.stride});
  }
  std::string options() const override { return str("size ", o.size, ", kernel ", o.kernel, ", stride ", o.stride); }
  Options o;
};

}  // namespace nn
}  // namespace lockstep
