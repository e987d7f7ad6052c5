// Color operations on images: see pictures.h.
#include <algorithm>
#include <array>
#include <cmath>

#include "extensions/vision/pictures/pictures.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

/// Checks and returns a picture of 1 or 3 channels; checks the factor of a blend, if there is one.
Tensor coloured(const char* op, const Tensor& x, double factor = 0) {
  LOCKSTEP_CHECK(factor >= 0, "[", op, "] expected a factor >= 0, got ", factor);
  Tensor in = picture(op, x);
  LOCKSTEP_CHECK(in.size(0) == 1 || in.size(0) == 3, "[", op, "] expected 1 or 3 channels, got ", in.shape(),
                 "; read the picture with ImageMode::rgb");
  return in;
}

Tensor of_bytes(const char* op, const Tensor& x) {
  Tensor in = picture(op, x);
  LOCKSTEP_CHECK(in.dtype() == u8, "[", op, "] expected a u8 picture, got ", in.dtype(), "; apply it before ToTensor");
  return in;
}

template <class T> constexpr float bound_of() { return std::is_same_v<T, uint8_t> ? 255.f : 1.f; }
/// Clamps a value to the range of T. For u8 the fraction is truncated.
template <class T> T pixel(float value) { return T(std::clamp(value, 0.f, bound_of<T>())); }

template <class T> T gray_at(const T* p, int64_t n, int64_t i) {
  return T(0.2989f * float(p[i]) + 0.587f * float(p[n + i]) + 0.114f * float(p[2 * n + i]));
}

/// factor * in + (1 - factor) * other, clamped. other_of(pixels of in) returns a function of the pixel's index within a
/// channel, and of the channel.
template <class Fn> Tensor blend(const Tensor& in, double factor, const Fn& other_of) {
  return mapped(in, [&]<class T>(const T* from, T* to) {
    const auto other = other_of(from);
    const float f = float(factor), rest = float(1 - factor);
    const int64_t channels = in.size(0), n = in.size(1) * in.size(2);
    for (int64_t c = 0; c < channels; ++c, from += n, to += n)
      for (int64_t i = 0; i < n; ++i) to[i] = pixel<T>(f * float(from[i]) + rest * float(other(i, c)));
  });
}

struct Hsv {
  float h, s, v;
};

Hsv hsv_of(float r, float g, float b) {
  const float greatest = std::max({r, g, b}), least = std::min({r, g, b});
  if (greatest == least) return {0, 0, greatest};
  const float range = greatest - least, rc = (greatest - r) / range, gc = (greatest - g) / range,
              bc = (greatest - b) / range;
  const float h = greatest == r ? bc - gc : greatest == g ? 2 + rc - bc : 4 + gc - rc;
  return {std::fmod(h / 6 + 1, 1.f), range / greatest, greatest};
}

std::array<float, 3> rgb_of(const Hsv& c) {
  const float six = c.h * 6, floor = std::floor(six), f = six - floor;
  const auto into = [](float value) { return std::clamp(value, 0.f, 1.f); };
  const float p = into(c.v * (1 - c.s)), q = into(c.v * (1 - c.s * f)), t = into(c.v * (1 - c.s * (1 - f)));
  switch (int(floor) % 6) {
    case 0: return {c.v, t, p};
    case 1: return {q, c.v, p};
    case 2: return {p, c.v, t};
    case 3: return {p, q, c.v};
    case 4: return {t, p, c.v};
    default: return {c.v, p, q};
  }
}

}  // namespace

Tensor grayscale(const Tensor& x, int64_t channels) {
  const Tensor in = coloured("grayscale", x);
  LOCKSTEP_CHECK(channels == 1 || channels == 3, "[grayscale] expected 1 or 3 output channels, got ", channels);
  const int64_t n = in.size(1) * in.size(2);
  const Tensor out = empty({channels, in.size(1), in.size(2)}, {.dtype = x.dtype(), .device = cpu});
  dispatch<uint8_t, float>(x.dtype(), "grayscale", [&]<class T> {
    const T* from = in.data<T>();
    T* to = out.data<T>();
    for (int64_t i = 0; i < n; ++i) to[i] = in.size(0) == 1 ? from[i] : gray_at(from, n, i);
    for (int64_t c = 1; c < channels; ++c) std::copy_n(to, n, to + c * n);
  });
  return out;
}

Tensor adjust_brightness(const Tensor& x, double factor) {
  const Tensor in = coloured("adjust_brightness", x, factor);
  return blend(in, factor, [](const auto*) { return [](int64_t, int64_t) { return 0.f; }; });
}

Tensor adjust_contrast(const Tensor& x, double factor) {
  const Tensor in = coloured("adjust_contrast", x, factor);
  const int64_t n = in.size(1) * in.size(2);
  return blend(in, factor, [&](const auto* from) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += double(in.size(0) == 1 ? from[i] : gray_at(from, n, i));
    return [mean = float(sum / double(n))](int64_t, int64_t) { return mean; };
  });
}

Tensor adjust_saturation(const Tensor& x, double factor) {
  const Tensor in = coloured("adjust_saturation", x, factor);
  if (in.size(0) == 1) return in;
  return blend(in, factor, [n = in.size(1) * in.size(2)](const auto* from) {
    return [from, n](int64_t i, int64_t) { return gray_at(from, n, i); };
  });
}

Tensor adjust_hue(const Tensor& x, double shift) {
  LOCKSTEP_CHECK(shift >= -0.5 && shift <= 0.5, "[adjust_hue] expected a hue shift in [-0.5, 0.5] turns, got ", shift);
  const Tensor in = coloured("adjust_hue", x);
  if (in.size(0) == 1) return in;
  const int64_t n = in.size(1) * in.size(2);
  return mapped(in, [&]<class T>(const T* p, T* to) {
    for (int64_t i = 0; i < n; ++i) {
      const auto at = [&](int c) { return float(p[c * n + i]) / bound_of<T>(); };
      Hsv colour = hsv_of(at(0), at(1), at(2));
      colour.h += float(shift);
      colour.h -= std::floor(colour.h);
      const auto rgb = rgb_of(colour);
      for (int c = 0; c < 3; ++c)
        if constexpr (std::is_same_v<T, uint8_t>) to[c * n + i] = T(rgb[size_t(c)] * 255.999f);
        else to[c * n + i] = rgb[size_t(c)];
    }
  });
}

Tensor adjust_sharpness(const Tensor& x, double factor) {
  const Tensor in = coloured("adjust_sharpness", x, factor);
  const int64_t h = in.size(1), w = in.size(2);
  if (h <= 2 || w <= 2) return in;
  return blend(in, factor, [=]<class T>(const T* all) {
    return [=](int64_t i, int64_t c) {
      const T* p = all + c * h * w;
      const int64_t column = i % w, row = i / w;
      if (row == 0 || row == h - 1 || column == 0 || column == w - 1) return float(p[i]);
      float sum = 4 * float(p[i]);
      for (int64_t dy = -1; dy <= 1; ++dy)
        for (int64_t dx = -1; dx <= 1; ++dx) sum += float(p[i + dy * w + dx]);
      return std::is_same_v<T, uint8_t> ? std::nearbyint(sum / 13) : sum / 13;
    };
  });
}

Tensor posterize(const Tensor& x, int bits) {
  LOCKSTEP_CHECK(bits >= 0 && bits <= 8, "[posterize] expected 0 to 8 bits, got ", bits);
  const Tensor in = of_bytes("posterize", x), out = empty_like(in);
  const uint8_t* from = in.data<uint8_t>();
  std::transform(from, from + in.numel(), out.data<uint8_t>(),
                 [mask = 256 - (1 << (8 - bits))](uint8_t value) { return uint8_t(value & mask); });
  return out;
}

Tensor solarize(const Tensor& x, double threshold) {
  LOCKSTEP_CHECK(!std::isnan(threshold), "[solarize] expected a threshold other than NaN, got ", threshold);
  const Tensor in = picture("solarize", x);
  return mapped(in, [&]<class T>(const T* from, T* to) {
    const T greatest = T(bound_of<T>());
    for (int64_t i = 0, n = in.numel(); i < n; ++i)
      to[i] = double(from[i]) >= threshold ? T(greatest - from[i]) : from[i];
  });
}

Tensor autocontrast(const Tensor& x) {
  const Tensor in = coloured("autocontrast", x);
  const int64_t n = in.size(1) * in.size(2);
  return mapped(in, [&]<class T>(const T* from, T* to) {
    for (int64_t c = 0; c < in.size(0); ++c, from += n, to += n) {
      const auto [least, greatest] = std::minmax_element(from, from + n);
      const bool flat = *least == *greatest;
      const float start = flat ? 0 : float(*least);
      const float scale =
          flat ? 1 : 1 / (float(*greatest) - float(*least)) * bound_of<T>();  // same rounding as PyTorch
      for (int64_t i = 0; i < n; ++i) to[i] = pixel<T>((float(from[i]) - start) * scale);
    }
  });
}

Tensor equalize(const Tensor& x) {
  const Tensor in = of_bytes("equalize", x), out = empty_like(in);
  const int64_t n = in.size(1) * in.size(2);
  for (int64_t c = 0; c < in.size(0); ++c) {
    const uint8_t* from = in.data<uint8_t>() + c * n;
    uint8_t* to = out.data<uint8_t>() + c * n;
    std::array<int64_t, 256> count{};
    for (int64_t i = 0; i < n; ++i) ++count[from[i]];
    // Spread the pixels evenly over 255 levels, `step` pixels for each; do not count those of the brightest level.
    const int64_t step = (n - count[*std::max_element(from, from + n)]) / 255;
    if (step == 0) {
      std::copy_n(from, n, to);
      continue;
    }
    std::array<uint8_t, 256> level{};
    int64_t below = 0;
    for (size_t v = 0; v < 256; ++v) {
      level[v] = uint8_t(v == 0 ? 0 : std::min<int64_t>((below + step / 2) / step, 255));
      below += count[v];
    }
    for (int64_t i = 0; i < n; ++i) to[i] = level[from[i]];
  }
  return out;
}

}  // namespace lockstep::data
