// Interpolation, and the windows of images as columns (unfold and fold).
#include <cmath>

#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "extensions/vision/resample.h"
#include "tensor/layout.h"

namespace lockstep {
namespace {

const char* name_of(Resampling method) {
  constexpr const char* names[] = {"nearest", "nearest_exact", "linear", "cubic", "area"};
  return names[int(method)];
}

void check_options(const char* op, const UnfoldOptions& o) {
  check_pair(op, "kernel", o.kernel, 1);
  check_pair(op, "dilation", o.dilation, 1);
  check_pair(op, "padding", o.padding, 0);
  check_pair(op, "stride", o.stride, 1);
}

/// The number of windows along each dim of an image (height, width).
Dims windows_of(const char* op, const Dims& size, const UnfoldOptions& o) {
  Dims windows;
  for (int d = 0; d < 2; ++d) {
    const int64_t room = size[d] + 2 * o.padding[d] - o.dilation[d] * (o.kernel[d] - 1) - 1;
    LOCKSTEP_CHECK(room >= 0, "[", op, "] expected a kernel that fits the padded image, got kernel ", o.kernel,
                   ", dilation ", o.dilation, ", padding ", o.padding, " for ", size, "; use more padding");
    windows.push_back(room / o.stride[d] + 1);
  }
  return windows;
}

/// An i64 list of positions of pixels in the padded image: for each kernel element, the pixel under it in each window.
Tensor window_places(const Dims& size, const Dims& windows, const UnfoldOptions& o, Device device) {
  std::vector<int64_t> places;
  const int64_t width = size[1] + 2 * o.padding[1];
  for (int64_t r = 0; r < o.kernel[0]; ++r)
    for (int64_t s = 0; s < o.kernel[1]; ++s)
      for (int64_t p = 0; p < windows[0]; ++p)
        for (int64_t q = 0; q < windows[1]; ++q)
          places.push_back((p * o.stride[0] + r * o.dilation[0]) * width + q * o.stride[1] + s * o.dilation[1]);
  return Tensor::from(places, {int64_t(places.size())}).to(device);
}

}  // namespace

Variable resample(const Variable& x, const std::vector<ResampleAxis>& axes) {
  return on_tape("resample", {&x}, resample(x.tensor(), axes), [axes](auto& back) {
    std::vector<ResampleAxis> opposite;
    for (const ResampleAxis& axis : axes) opposite.push_back(transposed(axis));
    back.give(0, resample(back.grad(), opposite));
  });
}

Variable interpolate(const Variable& x, const InterpolateOptions& o) {
  const char* const op = "[interpolate] ";
  const int dims = x.dim() - 2;
  const bool smooth = o.mode == Resampling::linear || o.mode == Resampling::cubic;
  LOCKSTEP_CHECK(is_floating(x.dtype()) && dims >= 1 && dims <= 3, op,
                 "expected a floating input (N, C, L), (N, C, H, W) or (N, C, D, H, W), got ", x.dtype(), " ",
                 x.shape(), "; convert or reshape it");
  LOCKSTEP_CHECK(o.size.empty() != o.scale.empty(), op, "expected a size or a scale, got ",
                 o.size.empty() ? "neither" : "both");
  const int given = o.size.empty() ? int(o.scale.size()) : o.size.rank();
  LOCKSTEP_CHECK(given == 1 || given == dims, op, "expected one ", o.size.empty() ? "scale" : "size", ", or ", dims,
                 " of them for ", x.shape(), ", got ", given);
  LOCKSTEP_CHECK(smooth || !o.align_corners, op, "expected align_corners with linear and cubic only, got ",
                 name_of(o.mode), "; leave align_corners out");
  LOCKSTEP_CHECK((smooth && dims == 2) || !o.antialias, op,
                 "leave antialias out: it is for linear and cubic images, got ", name_of(o.mode), " of ", x.shape());
  LOCKSTEP_CHECK(o.mode != Resampling::cubic || dims == 2, op, "expected images (N, C, H, W) for cubic, got ",
                 x.shape(), "; reshape the input, or use linear");
  std::vector<ResampleAxis> axes;
  for (int d = 0; d < dims; ++d) {
    const int64_t in = x.size(d + 2);
    const double scale = o.size.empty() ? o.scale[size_t(given == 1 ? 0 : d)] : 0;
    LOCKSTEP_CHECK(o.size.empty() ? scale > 0 && std::isfinite(scale) : o.size[given == 1 ? 0 : d] >= 1, op,
                   "expected sizes >= 1 and scales > 0, got ", o.size.empty() ? str(scale) : str(o.size));
    const int64_t out = o.size.empty() ? int64_t(std::floor(double(in) * scale)) : o.size[given == 1 ? 0 : d];
    LOCKSTEP_CHECK(in >= 1 && out >= 1, op, "expected an input and a result of at least one pixel, got ", x.shape(),
                   " and ", out, " for dim ", d + 2, "; enlarge the input, or the size or scale");
    axes.push_back(resample_axis(in, out, o.mode, o.recompute_scale ? 0 : scale, o.align_corners, o.antialias));
  }
  return resample(x, axes);
}

Variable unfold(const Variable& x, const UnfoldOptions& o) {
  check_options("unfold", o);
  LOCKSTEP_CHECK(x.dim() == 4, "[unfold] expected an input (N, C, H, W), got ", x.shape(), "; unsqueeze() it");
  const Dims size{x.size(2), x.size(3)}, windows = windows_of("unfold", size, o);
  const int64_t n = x.size(0), c = x.size(1);
  const Variable padded = pad(x, {o.padding[1], o.padding[1], o.padding[0], o.padding[0]});
  const Variable flat = padded.reshape({n, c, padded.size(2) * padded.size(3)});
  return index_select(flat, 2, window_places(size, windows, o, x.device()))
      .reshape({n, c * o.kernel[0] * o.kernel[1], windows[0] * windows[1]});
}

Variable fold(const Variable& columns, const Dims& size, const UnfoldOptions& o) {
  check_options("fold", o);
  LOCKSTEP_CHECK(size.rank() == 2 && size[0] >= 1 && size[1] >= 1, "[fold] expected a size (H, W) >= 1, got ", size);
  const Dims windows = windows_of("fold", size, o);
  const int64_t each = o.kernel[0] * o.kernel[1], count = windows[0] * windows[1];
  LOCKSTEP_CHECK(columns.dim() == 3 && columns.size(1) % each == 0 && columns.size(2) == count,
                 "[fold] expected columns (N, C x ", each, ", ", count, ") for ", size, ", got ", columns.shape());
  const int64_t n = columns.size(0), c = columns.size(1) / each;
  const int64_t height = size[0] + 2 * o.padding[0], width = size[1] + 2 * o.padding[1];
  const Tensor places = window_places(size, windows, o, columns.device()).expand({n, c, each * count});
  const Tensor none = zeros({n, c, height * width}, {.dtype = columns.dtype(), .device = columns.device()});
  return scatter_add(none, 2, places, columns.reshape({n, c, each * count}))
      .reshape({n, c, height, width})
      .narrow(2, o.padding[0], size[0])
      .narrow(3, o.padding[1], size[1]);
}

}  // namespace lockstep
