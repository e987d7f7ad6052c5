// RandAugment: see transforms.h. Strengths are as in torchvision.
#include <cmath>

#include "data/draw.h"
#include "extensions/vision/pictures/pictures.h"
#include "extensions/vision/pictures/transforms.h"

namespace lockstep::data {
namespace {

constexpr int64_t changes = 14;

/// Applies operation `change` (below `changes`; 0 changes nothing) at `part` (in [0, 1]) of its maximum strength. sign:
/// 1 or -1, the direction, for operations with two directions.
Tensor changed(const Tensor& x, int64_t change, double part, double sign, double fill) {
  const double h = double(x.size(1)), w = double(x.size(2)), shear = sign * 0.3 * part, factor = 1 + sign * 0.9 * part;
  switch (change) {
    // Shears, which keep the top or left edge in place, then translations.
    case 1: return affine(x, {.b = shear, .c = shear * h / 2}, false, fill);
    case 2: return affine(x, {.d = shear, .f = shear * w / 2}, false, fill);
    case 3: return affine(x, {.c = -std::trunc(sign * 150.0 / 331 * w * part)}, false, fill);
    case 4: return affine(x, {.f = -std::trunc(sign * 150.0 / 331 * h * part)}, false, fill);
    case 5: return rotate(x, sign * 30 * part, false, fill);
    case 6: return adjust_brightness(x, factor);
    case 7: return adjust_saturation(x, factor);
    case 8: return adjust_contrast(x, factor);
    case 9: return adjust_sharpness(x, factor);
    case 10: return posterize(x, 8 - int(std::nearbyint(4 * part)));
    case 11: return solarize(x, 255 * (1 - part));
    case 12: return autocontrast(x);
    case 13: return equalize(x);
    default: return x;
  }
}

}  // namespace

Tensor RandAugment::operator()(const Tensor& x) const {
  LOCKSTEP_CHECK(operations >= 0 && bins >= 2 && magnitude >= 0 && magnitude < bins,
                 "[RandAugment] expected operations >= 0, bins >= 2 and a magnitude from 0 to bins - 1, got ",
                 operations, ", ", bins, " and ", magnitude);
  Draws draws(next_random_key());
  Tensor out = picture("RandAugment", x);
  LOCKSTEP_CHECK(out.dtype() == u8 && (out.size(0) == 1 || out.size(0) == 3),
                 "[RandAugment] expected u8 (before ToTensor) with 1 or 3 channels, got ", out.dtype(), out.shape());
  const double part = double(magnitude) / double(bins - 1);
  for (int64_t i = 0; i < operations; ++i) {
    const int64_t change = draws.below(changes);
    const double sign = draws.below(2) == 0 ? 1 : -1;
    out = changed(out, change, part, sign, fill);
  }
  return out;
}

}  // namespace lockstep::data
