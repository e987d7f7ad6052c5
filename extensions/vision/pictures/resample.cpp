// Resizing, cropping and affine maps: see pictures.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "extensions/vision/pictures/pictures.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

/// Filter taps of a resize in one direction: for each output pixel, its input pixels and their weights.
struct Taps {
  std::vector<int64_t> first, count;
  int64_t widest = 0;
  std::vector<double> weights;  // `widest` weights per output pixel
};

/// Triangle filter. Its half width is one output pixel when shrinking, one input pixel when enlarging.
Taps taps_of(int64_t in, int64_t out) {
  Taps taps;
  const double scale = double(in) / double(out), width = std::max(scale, 1.0);
  taps.widest = int64_t(std::ceil(width)) * 2 + 1;
  taps.weights.assign(size_t(out * taps.widest), 0);
  for (int64_t i = 0; i < out; ++i) {
    const double middle = (double(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(int64_t(middle - width + 0.5), 0);
    const int64_t last = std::min<int64_t>(int64_t(middle + width + 0.5), in);
    double* w = taps.weights.data() + i * taps.widest;
    double sum = 0;
    for (int64_t j = first; j < last; ++j) {
      w[j - first] = std::max(0.0, 1 - std::abs((double(j) - middle + 0.5) / width));
      sum += w[j - first];
    }
    for (int64_t j = 0; j < last - first; ++j) w[j] /= sum;
    taps.first.push_back(first);
    taps.count.push_back(last - first);
  }
  return taps;
}

constexpr int kWeightBits = 22;  // fixed-point bits of u8 weights; 255 * sum of weights fits in 31 bits

/// The weights in T's arithmetic: fixed-point for u8, else float.
template <class T> auto weights_as(const Taps& taps) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    std::vector<int32_t> fixed_point;
    for (const double w : taps.weights) fixed_point.push_back(int32_t(w * (1 << kWeightBits) + 0.5));
    return fixed_point;
  } else {
    return std::vector<float>(taps.weights.begin(), taps.weights.end());
  }
}

template <class T, class Sum> T settled(Sum sum) {
  if constexpr (std::is_same_v<T, uint8_t>) return uint8_t(std::clamp<int32_t>(sum >> kWeightBits, 0, 255));
  else return sum;
}
template <class T> constexpr auto start_of_sum() {
  if constexpr (std::is_same_v<T, uint8_t>) return int32_t(1) << (kWeightBits - 1);
  else return 0.f;
}

template <class T> void along_rows(const T* in, int64_t rows, int64_t width, const Taps& taps, T* out) {
  const auto weights = weights_as<T>(taps);
  const int64_t to = int64_t(taps.first.size());
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < to; ++x) {
      const T* from = in + y * width + taps.first[size_t(x)];
      const auto* w = weights.data() + x * taps.widest;
      auto sum = start_of_sum<T>();
      for (int64_t j = 0; j < taps.count[size_t(x)]; ++j) sum += decltype(sum)(from[j]) * w[j];
      out[y * to + x] = settled<T>(sum);
    }
}

template <class T> void along_columns(const T* in, int64_t width, const Taps& taps, T* out) {
  const auto weights = weights_as<T>(taps);
  std::vector<decltype(start_of_sum<T>())> sums(static_cast<size_t>(width));
  for (int64_t y = 0; y < int64_t(taps.first.size()); ++y) {
    std::fill(sums.begin(), sums.end(), start_of_sum<T>());
    for (int64_t j = 0; j < taps.count[size_t(y)]; ++j) {
      const auto w = weights[size_t(y * taps.widest + j)];
      const T* from = in + (taps.first[size_t(y)] + j) * width;
      for (int64_t x = 0; x < width; ++x) sums[size_t(x)] += decltype(start_of_sum<T>())(from[x]) * w;
    }
    for (int64_t x = 0; x < width; ++x) out[y * width + x] = settled<T>(sums[size_t(x)]);
  }
}

/// One channel of an image, with zeros outside. nearest() and bilinear() sample it at a position. They add to `there`
/// the part of the sample (0 to 1) that comes from pixels inside the image.
template <class T> struct Plane {
  const T* p;
  int64_t height, width;
  double at(int64_t y, int64_t x, double part, double& there) const {
    if (y < 0 || x < 0 || y >= height || x >= width) return 0;
    there += part;
    return part * double(p[y * width + x]);
  }
  double nearest(double y, double x, double& there) const {
    return at(int64_t(std::nearbyint(y)), int64_t(std::nearbyint(x)), 1, there);
  }
  double bilinear(double y, double x, double& there) const {
    const double top = std::floor(y), left = std::floor(x), v = y - top, u = x - left;
    const int64_t i = int64_t(top), j = int64_t(left);
    return at(i, j, (1 - v) * (1 - u), there) + at(i, j + 1, (1 - v) * u, there) + at(i + 1, j, v * (1 - u), there) +
           at(i + 1, j + 1, v * u, there);
  }
};

}  // namespace

Tensor picture(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(
      x.defined() && x.device().is_cpu() && x.dim() == 3 && (x.dtype() == u8 || x.dtype() == f32), "[", op,
      "] expected a picture (channels, height, width), u8 or f32, on the cpu, got ",
      x.defined() ? str(x.dtype(), x.shape(), " on ", x.device(), "; convert, move or reshape it") : "none; pass one");
  LOCKSTEP_CHECK(x.numel() > 0, "[", op, "] expected a picture of at least 1 x 1 pixels, got ", x.shape());
  return x.contiguous();
}

Tensor resize(const Tensor& x, int64_t height, int64_t width) {
  const Tensor in = picture("resize", x);
  LOCKSTEP_CHECK(height >= 1 && width >= 1, "[resize] expected at least 1 x 1 pixels, got ", height, " x ", width);
  const int64_t channels = in.size(0), h = in.size(1), w = in.size(2);
  if (h == height && w == width) return in;
  const Tensor narrow = empty({channels, h, width}, {.dtype = x.dtype(), .device = cpu});
  const Tensor out = empty({channels, height, width}, {.dtype = x.dtype(), .device = cpu});
  dispatch<uint8_t, float>(x.dtype(), "resize", [&]<class T> {
    along_rows(in.data<T>(), channels * h, w, taps_of(w, width), narrow.data<T>());
    const Taps down = taps_of(h, height);
    for (int64_t c = 0; c < channels; ++c)
      along_columns(narrow.data<T>() + c * h * width, width, down, out.data<T>() + c * height * width);
  });
  return out;
}

Tensor crop(const Tensor& x, int64_t top, int64_t left, int64_t height, int64_t width, double fill) {
  const Tensor in = picture("crop", x);
  LOCKSTEP_CHECK(height >= 1 && width >= 1, "[crop] expected at least 1 x 1 pixels, got ", height, " x ", width);
  const int64_t h = in.size(1), w = in.size(2);
  const Tensor out = full({in.size(0), height, width}, fill, {.dtype = x.dtype(), .device = cpu});
  const int64_t y0 = std::max<int64_t>(top, 0), y1 = std::min(top + height, h);
  const int64_t x0 = std::max<int64_t>(left, 0), x1 = std::min(left + width, w);
  if (y0 >= y1 || x0 >= x1) return out;
  dispatch<uint8_t, float>(x.dtype(), "crop", [&]<class T> {
    for (int64_t c = 0; c < in.size(0); ++c)
      for (int64_t y = y0; y < y1; ++y)
        std::copy_n(in.data<T>() + (c * h + y) * w + x0, x1 - x0,
                    out.data<T>() + (c * height + y - top) * width + x0 - left);
  });
  return out;
}

Tensor flip_horizontally(const Tensor& x) {
  const Tensor in = picture("flip_horizontally", x);
  return mapped(in, [&](const auto* from, auto* to) {
    for (int64_t y = 0, w = in.size(2); y < in.numel(); y += w) std::reverse_copy(from + y, from + y + w, to + y);
  });
}

Tensor flip_vertically(const Tensor& x) {
  const Tensor in = picture("flip_vertically", x);
  const int64_t h = in.size(1), w = in.size(2);
  return mapped(in, [&](const auto* from, auto* to) {
    for (int64_t y = 0; y < in.size(0) * h; ++y) std::copy_n(from + y * w, w, to + (y / h * h + h - 1 - y % h) * w);
  });
}

Tensor affine(const Tensor& x, const AffineMap& m, bool bilinear, double fill) {
  const Tensor in = picture("affine", x);
  for (const double number : {m.a, m.b, m.c, m.d, m.e, m.f})
    LOCKSTEP_CHECK(std::isfinite(number), "[affine] expected finite coefficients, got ", number);
  const int64_t channels = in.size(0), h = in.size(1), w = in.size(2);
  const double middle_y = double(h) / 2, middle_x = double(w) / 2, far = 4.0 * double(h + w);
  return mapped(in, [&]<class T>(const T* from, T* to) {
    for (int64_t c = 0; c < channels; ++c) {
      const Plane<T> plane{from + c * h * w, h, w};
      for (int64_t i = 0; i < h; ++i)
        for (int64_t j = 0; j < w; ++j) {
          const double v = double(i) + 0.5 - middle_y, u = double(j) + 0.5 - middle_x;
          // Clamped so that the coordinates fit in int64_t.
          const double fx = std::clamp(m.a * u + m.b * v + m.c + middle_x - 0.5, -far, far);
          const double fy = std::clamp(m.d * u + m.e * v + m.f + middle_y - 0.5, -far, far);
          double there = 0;
          double value = bilinear ? plane.bilinear(fy, fx, there) : plane.nearest(fy, fx, there);
          // `value` counts pixels outside as 0 already. Nevertheless torchvision multiplies it by `there`: do the same.
          value = there * value + (1 - there) * fill;
          if constexpr (std::is_same_v<T, uint8_t>) *to++ = uint8_t(std::clamp(std::nearbyint(value), 0.0, 255.0));
          else *to++ = float(value);
        }
    }
  });
}

Tensor rotate(const Tensor& x, double degrees, bool bilinear, double fill) {
  const double angle = degrees * 3.14159265358979323846 / 180, c = std::cos(angle), s = std::sin(angle);
  return affine(x, {.a = c, .b = -s, .c = 0, .d = s, .e = c, .f = 0}, bilinear, fill);
}

}  // namespace lockstep::data
