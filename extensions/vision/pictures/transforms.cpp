// Random transforms of images: see transforms.h.
#include "extensions/vision/pictures/transforms.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "data/draw.h"
#include "data/images.h"
#include "extensions/vision/pictures/pictures.h"
#include "tensor/ops.h"
#include "tensor/random_math.h"

namespace lockstep::data {
namespace {

void check_size(const char* op, int64_t height, int64_t width) {
  LOCKSTEP_CHECK(height >= 1 && width >= 1, "[", op, "] expected a height and a width >= 1, got ", height, " and ",
                 width);
}
void check_probability(const char* op, double p) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[", op, "] expected a probability in [0, 1], got ", p);
}
void check_range(const char* op, const char* what, const UniformRange& range) {
  LOCKSTEP_CHECK(range.low > 0 && range.low <= range.high, "[", op, "] expected a ", what,
                 " range with 0 < low <= high, got ", range.low, " to ", range.high);
}

/// Draws a uniform number in [low, high), with 53 random bits. From [0, 1) it never draws 1, not even by rounding.
double uniform(Draws& draws, double low, double high) {
  return low + (high - low) * double(draws.next() >> 11) * 0x1p-53;
}
/// Draws the sides of a rectangle: its area is a random part of `area`, its aspect ratio is log-uniform.
std::pair<int64_t, int64_t> random_sides(Draws& draws, double area, const UniformRange& scale,
                                         const UniformRange& ratio) {
  const double part = area * uniform(draws, scale.low, scale.high);
  const double r = std::exp(uniform(draws, std::log(ratio.low), std::log(ratio.high)));
  return {int64_t(std::nearbyint(std::sqrt(part * r))), int64_t(std::nearbyint(std::sqrt(part / r)))};
}

}  // namespace

Compose::Compose(std::vector<Transform> steps) : steps_(std::move(steps)) {
  for (size_t i = 0; i < steps_.size(); ++i)
    LOCKSTEP_CHECK(steps_[i], "[Compose] expected transforms, got none as number ", i, "; leave it out");
}

Tensor Resize::operator()(const Tensor& x) const {
  const Tensor in = picture("Resize", x);
  if (width != 0) return check_size("Resize", height, width), resize(in, height, width);
  check_size("Resize", height, 1);
  const int64_t h = in.size(1), w = in.size(2);
  const int64_t longer = int64_t(double(height * std::max(h, w)) / double(std::min(h, w)));
  return h < w ? resize(in, height, longer) : resize(in, longer, height);
}

Tensor CenterCrop::operator()(const Tensor& x) const {
  check_size("CenterCrop", height, width);
  const Tensor in = picture("CenterCrop", x);
  // Returns the index of the crop's first pixel: -p if the image is too small and gets p pixels of padding in front.
  const auto start = [](int64_t is, int64_t wanted) {
    return is >= wanted ? int64_t(std::nearbyint(double(is - wanted) / 2)) : -((wanted - is) / 2);
  };
  return crop(in, start(in.size(1), height), start(in.size(2), width), height, width);
}

Tensor RandomCrop::operator()(const Tensor& x) const {
  check_size("RandomCrop", height, width);
  LOCKSTEP_CHECK(padding >= 0, "[RandomCrop] expected padding >= 0, got ", padding);
  Draws draws(next_random_key());
  const Tensor in = picture("RandomCrop", x);
  const auto start = [&](int64_t is, int64_t wanted, const char* what) {
    int64_t around = padding;
    if (pad_if_needed) around += std::max<int64_t>(wanted - is - 2 * padding, 0);
    const int64_t room = is + 2 * around - wanted;
    LOCKSTEP_CHECK(room >= 0, "[RandomCrop] expected a picture of at least ", wanted, " pixels in ", what, ", got ", is,
                   " and padding ", padding, " (or set pad_if_needed)");
    return draws.below(room + 1) - around;
  };
  const int64_t top = start(in.size(1), height, "height"), left = start(in.size(2), width, "width");
  return crop(in, top, left, height, width, fill);
}

Tensor RandomResizedCrop::operator()(const Tensor& x) const {
  check_size("RandomResizedCrop", height, width);
  check_range("RandomResizedCrop", "scale", scale), check_range("RandomResizedCrop", "ratio", ratio);
  Draws draws(next_random_key());
  const Tensor in = picture("RandomResizedCrop", x);
  const int64_t h = in.size(1), w = in.size(2);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto [part_w, part_h] = random_sides(draws, double(h * w), scale, ratio);
    if (part_w < 1 || part_h < 1 || part_w > w || part_h > h) continue;
    const int64_t top = draws.below(h - part_h + 1), left = draws.below(w - part_w + 1);
    return resize(crop(in, top, left, part_h, part_w), height, width);
  }
  // Fallback: the largest central crop with an allowed ratio.
  int64_t part_w = w, part_h = h;
  if (double(w) / double(h) < ratio.low) part_h = std::max<int64_t>(1, int64_t(std::nearbyint(double(w) / ratio.low)));
  else if (double(w) / double(h) > ratio.high)
    part_w = std::max<int64_t>(1, int64_t(std::nearbyint(double(h) * ratio.high)));
  return resize(crop(in, (h - part_h) / 2, (w - part_w) / 2, part_h, part_w), height, width);
}

Tensor RandomHorizontalFlip::operator()(const Tensor& x) const {
  check_probability("RandomHorizontalFlip", p);
  Draws draws(next_random_key());
  return uniform(draws, 0, 1) < p ? flip_horizontally(x) : x;
}

Tensor RandomVerticalFlip::operator()(const Tensor& x) const {
  check_probability("RandomVerticalFlip", p);
  Draws draws(next_random_key());
  return uniform(draws, 0, 1) < p ? flip_vertically(x) : x;
}

Tensor RandomRotation::operator()(const Tensor& x) const {
  LOCKSTEP_CHECK(degrees >= 0, "[RandomRotation] expected degrees >= 0, got ", degrees);
  Draws draws(next_random_key());
  return rotate(x, uniform(draws, -degrees, degrees), bilinear, fill);
}

Tensor ColorJitter::operator()(const Tensor& x) const {
  LOCKSTEP_CHECK(brightness >= 0 && contrast >= 0 && saturation >= 0,
                 "[ColorJitter] expected brightness, contrast and saturation >= 0, got ", brightness, ", ", contrast,
                 " and ", saturation);
  LOCKSTEP_CHECK(hue >= 0 && hue <= 0.5, "[ColorJitter] expected hue in [0, 0.5], got ", hue);
  Draws draws(next_random_key());
  std::array<int, 4> order{0, 1, 2, 3};
  for (int64_t i = 3; i > 0; --i) std::swap(order[size_t(i)], order[size_t(draws.below(i + 1))]);
  const auto factor = [&](double by) { return uniform(draws, std::max(0.0, 1 - by), 1 + by); };
  const double light = factor(brightness), span = factor(contrast), depth = factor(saturation);
  const double shift = uniform(draws, -hue, hue);
  Tensor out = picture("ColorJitter", x);
  for (const int step : order) {
    if (step == 0 && brightness > 0) out = adjust_brightness(out, light);
    if (step == 1 && contrast > 0) out = adjust_contrast(out, span);
    if (step == 2 && saturation > 0) out = adjust_saturation(out, depth);
    if (step == 3 && hue > 0) out = adjust_hue(out, shift);
  }
  return out;
}

Tensor Grayscale::operator()(const Tensor& x) const { return grayscale(x, channels); }

Tensor ToTensor::operator()(const Tensor& x) const {
  const Tensor in = picture("ToTensor", x);
  return in.dtype() == f32 ? in : images_from_bytes(in);
}

Tensor Normalize::operator()(const Tensor& x) const {
  const Tensor in = picture("Normalize", x);
  LOCKSTEP_CHECK(in.dtype() == f32, "[Normalize] expected an f32 picture (ToTensor makes one), got ", in.dtype());
  const size_t channels = size_t(in.size(0));
  LOCKSTEP_CHECK(mean.size() == deviation.size() && (mean.size() == 1 || mean.size() == channels),
                 "[Normalize] expected a mean and a deviation for each of ", channels,
                 " channels, or one for all, got ", mean.size(), " and ", deviation.size());
  for (const double d : deviation) LOCKSTEP_CHECK(d != 0, "[Normalize] expected deviations other than 0, got ", d);
  const Tensor out = empty_like(in);
  const int64_t n = in.size(1) * in.size(2);
  for (size_t c = 0; c < channels; ++c) {
    const float m = float(mean[mean.size() == 1 ? 0 : c]), d = float(deviation[mean.size() == 1 ? 0 : c]);
    const float* from = in.data<float>() + int64_t(c) * n;
    float* to = out.data<float>() + int64_t(c) * n;
    for (int64_t i = 0; i < n; ++i) to[i] = (from[i] - m) / d;
  }
  return out;
}

Tensor RandomErasing::operator()(const Tensor& x) const {
  check_probability("RandomErasing", p);
  check_range("RandomErasing", "scale", scale), check_range("RandomErasing", "ratio", ratio);
  LOCKSTEP_CHECK(scale.high <= 1, "[RandomErasing] expected a scale of at most 1, got ", scale.high);
  Draws draws(next_random_key());
  const Tensor in = picture("RandomErasing", x);
  LOCKSTEP_CHECK(!noise || in.dtype() == f32, "[RandomErasing] expected f32 (use ToTensor) for noise, got ",
                 in.dtype());
  if (uniform(draws, 0, 1) >= p) return in;
  const int64_t h = in.size(1), w = in.size(2);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto [part_h, part_w] = random_sides(draws, double(h * w), scale, ratio);
    if (part_h >= h || part_w >= w || part_h < 1 || part_w < 1) continue;
    const int64_t top = draws.below(h - part_h + 1), left = draws.below(w - part_w + 1);
    const Tensor out = in.clone();
    for (int64_t c = 0; c < in.size(0); ++c)
      for (int64_t y = top; y < top + part_h; ++y)
        for (int64_t i = (c * h + y) * w + left; i < (c * h + y) * w + left + part_w; ++i) {
          if (in.dtype() == u8) out.data<uint8_t>()[i] = uint8_t(std::clamp(value, 0.0, 255.0));
          else if (!noise) out.data<float>()[i] = float(value);
          else {
            const uint64_t bits = draws.next();
            out.data<float>()[i] = random_math::normals_of(uint32_t(bits), uint32_t(bits >> 32), 0.f, 1.f).first;
          }
        }
    return out;
  }
  return in;
}

}  // namespace lockstep::data
