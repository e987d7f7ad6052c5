// Weights of resampling, and the operation itself. See resample.h.
#include "extensions/vision/resample.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor/layout.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

constinit const Op<Resample> resample_op{"resample", on_cpu::resample, nullptr};

/// The positions of the inputs that are summed for one output, and the weight of each.
using Parts = std::vector<std::pair<int64_t, double>>;

ResampleAxis axis_of(int64_t in, const std::vector<Parts>& all) {
  ResampleAxis axis{.in = in, .out = int64_t(all.size())};
  for (const Parts& parts : all)
    if (!parts.empty()) {
      const auto [low, high] = std::minmax_element(parts.begin(), parts.end());
      axis.taps = std::max(axis.taps, high->first - low->first + 1);
    }
  axis.weight.resize(size_t(axis.taps * axis.out));
  for (int64_t i = 0; i < axis.out; ++i) {
    const Parts& parts = all[size_t(i)];
    const int64_t low = parts.empty() ? 0 : std::min_element(parts.begin(), parts.end())->first;
    const int64_t first = std::min(low, in - axis.taps);
    axis.first.push_back(int32_t(first));
    for (const auto& [place, weight] : parts) axis.weight[size_t((place - first) * axis.out + i)] += weight;
  }
  return axis;
}

double triangle_filter(double x) { return std::max(0.0, 1 - std::abs(x)); }

/// Cubic convolution kernel (Keys, 1981).
double cubic_filter(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/// Weights with antialiasing: when shrinking, stretches the filter by `step`, the number of inputs per output.
Parts smoothed(int64_t i, int64_t in, double step, bool cubic) {
  const double stretch = std::max(step, 1.0), reach = (cubic ? 2 : 1) * stretch, center = step * (double(i) + 0.5);
  const int64_t first = std::max<int64_t>(int64_t(center - reach + 0.5), 0),
                last = std::min<int64_t>(int64_t(center + reach + 0.5), in);
  Parts parts;
  double sum = 0;
  for (int64_t j = first; j < last; ++j) {
    const double x = (double(j) - center + 0.5) / stretch, w = cubic ? cubic_filter(x, -0.5) : triangle_filter(x);
    parts.emplace_back(j, w);
    sum += w;
  }
  if (sum != 0)
    for (auto& part : parts) part.second /= sum;
  return parts;
}

Parts parts_of(int64_t i, int64_t in, int64_t out, Resampling method, double step, bool align_corners, bool antialias) {
  if (method == Resampling::area) {
    Parts parts;
    const int64_t first = i * in / out, last = ((i + 1) * in + out - 1) / out;
    for (int64_t j = first; j < last; ++j) parts.emplace_back(j, 1 / double(last - first));
    return parts;
  }
  if (method == Resampling::nearest || method == Resampling::nearest_exact) {  // in f32, like PyTorch
    const float at = std::floor((float(i) + (method == Resampling::nearest ? 0.f : 0.5f)) * float(step));
    return {{std::min(int64_t(at), in - 1), 1}};
  }
  if (antialias) return smoothed(i, in, step, method == Resampling::cubic);
  double at = align_corners ? step * double(i) : step * (double(i) + 0.5) - 0.5;
  Parts parts;
  if (method == Resampling::cubic) {
    const double base = std::floor(at);
    for (int k = -1; k <= 2; ++k)
      parts.emplace_back(std::clamp<int64_t>(int64_t(base) + k, 0, in - 1), cubic_filter(at - base - k, -0.75));
    return parts;
  }
  at = std::max(at, 0.0);
  const int64_t base = std::min(int64_t(at), in - 1);
  const double rest = std::min(at - double(base), 1.0);
  parts.emplace_back(base, 1 - rest);
  if (rest > 0) parts.emplace_back(std::min(base + 1, in - 1), rest);
  return parts;
}

/// Resamples dim `d` with operations that every device has: for few taps a sum of slices, else a matrix product.
Tensor composed_along(const Tensor& x, int64_t d, const ResampleAxis& axis) {
  const auto like = [&](const std::vector<double>& values, const Shape& shape) {
    return Tensor::from(values, shape).to(x.dtype()).to(x.device());
  };
  if (axis.taps > 4) {
    std::vector<double> all(size_t(axis.in * axis.out));
    for (int64_t k = 0; k < axis.taps; ++k)
      for (int64_t i = 0; i < axis.out; ++i) {
        const double w = axis.weight[size_t(k * axis.out + i)];
        if (w != 0) all[size_t((axis.first[size_t(i)] + k) * axis.out + i)] = w;
      }
    return matmul(x.transpose(d, -1), like(all, {axis.in, axis.out})).transpose(d, -1);
  }
  Shape own = Dims::filled(x.dim(), 1);
  own[int(d)] = axis.out;
  Tensor sum;
  for (int64_t k = 0; k < axis.taps; ++k) {
    std::vector<int64_t> places;
    for (const int32_t first : axis.first) places.push_back(first + k);
    const std::vector<double> weights(axis.weight.begin() + k * axis.out, axis.weight.begin() + (k + 1) * axis.out);
    Tensor part = index_select(x, d, Tensor::from(places, {axis.out}).to(x.device()));
    if (std::any_of(weights.begin(), weights.end(), [](double w) { return w != 1; }))
      part = mul(part, like(weights, own));
    sum = sum.defined() ? add(sum, part) : part;
  }
  return sum;
}

/// Calls the kernel on x and out viewed as (units, H, W, C).
void run_resample(const Tensor& x, const ResampleAxis& rows, const ResampleAxis& columns, int64_t units, int64_t inner,
                  Tensor out) {
  Tensor to = out.view({units, rows.out, columns.out, inner});
  resample_op(x.device(), x.view({units, rows.in, columns.in, inner}), rows, columns, to);
}

ResampleAxis same_axis(int64_t size) { return {.in = size, .out = size}; }

}  // namespace

ResampleAxis resample_axis(int64_t in, int64_t out, Resampling method, double scale, bool align_corners,
                           bool antialias) {
  LOCKSTEP_CHECK(in >= 1 && out >= 1 && scale >= 0, "[resample_axis] expected sizes >= 1 and a scale >= 0, got ", in,
                 ", ", out, " and ", scale);
  if (in == out && method == Resampling::linear && !antialias)
    return same_axis(in);  // whatever the scale, like PyTorch
  double step = scale > 0 ? 1 / scale : double(in) / double(out);
  if (align_corners) step = out > 1 ? double(in - 1) / double(out - 1) : 0;
  std::vector<Parts> all;
  bool same = in == out;
  for (int64_t i = 0; i < out; ++i) {
    all.push_back(parts_of(i, in, out, method, step, align_corners, antialias));
    for (const auto& [place, weight] : all.back()) same = same && weight == double(place == i);
  }
  return same ? same_axis(in) : axis_of(in, all);
}

ResampleAxis transposed(const ResampleAxis& axis) {
  if (axis.is_same()) return axis;
  std::vector<Parts> all(size_t(axis.in));
  for (int64_t i = 0; i < axis.out; ++i)
    for (int64_t k = 0; k < axis.taps; ++k) {
      const double w = axis.weight[size_t(k * axis.out + i)];
      if (w != 0) all[size_t(axis.first[size_t(i)] + k)].emplace_back(i, w);
    }
  return axis_of(axis.out, all);
}

Tensor resample(const Tensor& x, const std::vector<ResampleAxis>& axes) {
  check_floating("resample", x);
  const int count = int(axes.size());
  LOCKSTEP_CHECK(count >= 1 && count <= 3 && x.dim() == 2 + count, "[resample] expected an input (N, C, ...) with ",
                 "1 to 3 dims after C and an axis for each, got ", x.shape(), " and ", count, " axes");
  Shape shape = x.shape();
  for (int d = 0; d < count; ++d) {
    LOCKSTEP_CHECK(x.size(d + 2) == axes[size_t(d)].in, "[resample] expected size ", axes[size_t(d)].in, " in dim ",
                   d + 2, ", got ", x.shape());
    shape[d + 2] = axes[size_t(d)].out;
  }
  if (size_of(x.dtype()) == 2) return resample(x.to(f32), axes).to(x.dtype());
  const TensorOptions options{.dtype = x.dtype(), .device = x.device()};
  const int64_t n = x.size(0), c = x.size(1);
  if (numel_of(shape) == 0) return empty(shape, options);
  if (!x.device().is_cpu()) {
    Tensor y = x;
    for (int d = 0; d < count; ++d)
      if (!axes[size_t(d)].is_same()) y = composed_along(y, d + 2, axes[size_t(d)]);
    return y.is_contiguous() && y.storage() != x.storage() ? y : y.clone();
  }
  if (count == 3) {  // two passes, planes and depth; the pass that makes the tensor smaller comes first
    const ResampleAxis& depth = axes[0];
    const auto planes = [&](const Tensor& from) {
      const Tensor flat = from.contiguous().view({n, c * from.size(2), from.size(3), from.size(4)});
      return resample(flat, {axes[1], axes[2]}).view({n, c, from.size(2), shape[3], shape[4]});
    };
    const auto deep = [&](const Tensor& from) {
      const int64_t places = from.size(3) * from.size(4);
      const Tensor flat = from.contiguous().view({n, c, from.size(2), places});
      return resample(flat, {depth, same_axis(places)}).view({n, c, depth.out, from.size(3), from.size(4)});
    };
    return depth.out < depth.in ? planes(deep(x)) : deep(planes(x));
  }
  const ResampleAxis one, &rows = count == 1 ? one : axes[0], &columns = axes.back();
  if (is_channels_last(x)) {
    const Tensor out = empty({n, shape[2], shape[3], c}, options);
    run_resample(x.permute({0, 2, 3, 1}), rows, columns, n, c, out);
    return out.permute({0, 3, 1, 2});
  }
  const Tensor out = empty(shape, options);
  run_resample(x.contiguous(), rows, columns, n * c, 1, out);
  return out;
}

}  // namespace lockstep
