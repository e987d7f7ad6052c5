// Synthetic digits: see images.h. Strokes are point lists in the unit square (y downward). A random affine map takes
// them to the image, where a pixel's intensity falls off with its distance from the nearest stroke.
#include "data/images.h"

#include <algorithm>
#include <cmath>

#include "data/draw.h"
#include "tensor/cpu/parallel.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

constexpr int side = 28, digit_pixels = side * side;

struct Point {
  float x, y;
};
using Stroke = std::vector<Point>;

/// An elliptic arc between two angles in degrees (0 is right, 90 is down).
Stroke arc(Point centre, float rx, float ry, float from, float to) {
  Stroke points;
  constexpr int pieces = 12;
  for (int i = 0; i <= pieces; ++i) {
    const float angle = (from + (to - from) * float(i) / pieces) * 3.14159265f / 180;
    points.push_back({centre.x + rx * std::cos(angle), centre.y + ry * std::sin(angle)});
  }
  return points;
}

Stroke operator+(Stroke a, const Stroke& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The strokes of a digit. 1, 4 and 7 come in two forms, as in handwriting.
std::vector<Stroke> strokes_of(int digit, Draws& draws) {
  const auto about = [&](float value) { return value + draws.uniform(-0.03f, 0.03f); };
  const auto at = [&](float x, float y) { return Point{about(x), about(y)}; };
  const bool other_way = draws.uniform() < 0.5f;
  switch (digit) {
    case 0: return {arc(at(.5f, .5f), about(.26f), about(.39f), -90, 270)};
    case 1: {
      const Point top = at(.52f, .1f);
      Stroke stroke{top, at(.5f, .9f)};
      return other_way ? std::vector<Stroke>{stroke, {at(.34f, .28f), top}} : std::vector<Stroke>{stroke};
    }
    case 2:
      return {arc(at(.48f, .32f), about(.25f), about(.21f), 190, 390) + Stroke{at(.25f, .87f)},
              {at(.25f, .87f), at(.78f, .87f)}};
    case 3:
      return {arc(at(.46f, .3f), about(.23f), about(.19f), 205, 450) +
              arc(at(.46f, .69f), about(.26f), about(.2f), 270, 510)};
    case 4: {
      const Point corner = at(.22f, .6f), top = other_way ? at(.62f, .1f) : at(.3f, .14f);
      return {{top, corner, at(.82f, .6f)}, {at(.64f, other_way ? .1f : .3f), at(.62f, .9f)}};
    }
    case 5:
      return {{at(.75f, .13f), at(.33f, .13f), at(.3f, .47f)},
              Stroke{at(.3f, .47f)} + arc(at(.47f, .66f), about(.26f), about(.22f), 235, 500)};
    case 6:
      return {arc(at(.64f, .6f), about(.37f), about(.47f), 265, 185),
              arc(at(.5f, .68f), about(.23f), about(.2f), 0, 360)};
    case 7: {
      const Stroke stroke{at(.23f, .14f), at(.77f, .14f), at(.42f, .9f)};
      return other_way ? std::vector<Stroke>{stroke, {at(.36f, .52f), at(.7f, .52f)}} : std::vector<Stroke>{stroke};
    }
    case 8:
      return {arc(at(.5f, .3f), about(.2f), about(.18f), 90, 450),
              arc(at(.5f, .69f), about(.24f), about(.2f), -90, 270)};
    default:
      return {arc(at(.48f, .32f), about(.22f), about(.2f), 0, 360), {at(.7f, .32f), at(.69f, .6f), at(.58f, .9f)}};
  }
}

float distance(Point p, Point a, Point b) {
  const float dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  const float along = length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.f, 1.f) : 0.f;
  const float x = p.x - a.x - along * dx, y = p.y - a.y - along * dy;
  return std::sqrt(x * x + y * y);
}

void draw_digit(int64_t index, uint64_t seed, float* picture) {
  Draws draws({.seed = seed ^ 0x646967697473ull, .stream = uint64_t(index)});
  auto strokes = strokes_of(int(index % 10), draws);

  const float angle = draws.uniform(-0.28f, 0.28f), shear = draws.uniform(-0.25f, 0.25f);
  const float wide = draws.uniform(17, 23), high = draws.uniform(18, 24);
  const Point middle{13.5f + draws.uniform(-2.5f, 2.5f), 13.5f + draws.uniform(-2.5f, 2.5f)};
  const float c = std::cos(angle), s = std::sin(angle);
  const float radius = draws.uniform(0.7f, 1.7f), edge = draws.uniform(0.7f, 1.1f), ink = draws.uniform(0.75f, 1),
              noise = draws.uniform(0, 0.12f);

  std::fill_n(picture, digit_pixels, 0.f);
  for (auto& stroke : strokes) {
    for (auto& p : stroke) {
      const float x = (p.x - .5f + shear * (.5f - p.y)) * wide, y = (p.y - .5f) * high;
      p = {middle.x + c * x - s * y, middle.y + s * x + c * y};
    }
    for (size_t i = 0; i + 1 < stroke.size(); ++i) {
      const Point a = stroke[i], b = stroke[i + 1];
      const float reach = radius + edge;
      const int left = std::max(0, int(std::min(a.x, b.x) - reach)),
                right = std::min(side - 1, int(std::max(a.x, b.x) + reach) + 1);
      const int top = std::max(0, int(std::min(a.y, b.y) - reach)),
                bottom = std::min(side - 1, int(std::max(a.y, b.y) + reach) + 1);
      for (int y = top; y <= bottom; ++y) {
        for (int x = left; x <= right; ++x) {
          const float grey = ink * std::clamp((reach - distance({float(x), float(y)}, a, b)) / edge, 0.f, 1.f);
          picture[y * side + x] = std::max(picture[y * side + x], grey);
        }
      }
    }
  }
  for (int i = 0; i < digit_pixels; i += 4) {  // four 16-bit noise values from each draw
    const uint64_t bits = draws.next();
    for (int j = 0; j < 4; ++j) {
      const float value = picture[i + j] + noise * (float(bits >> (16 * j) & 0xffff) * 0x1p-15f - 1);
      picture[i + j] = std::clamp(value, 0.f, 1.f);
    }
  }
}

}  // namespace

SyntheticDigits::SyntheticDigits(int64_t n, uint64_t seed) : n_(n), seed_(seed) {
  LOCKSTEP_CHECK(n >= 0, "[SyntheticDigits] expected n >= 0, got ", n);
}

Example SyntheticDigits::get(int64_t index) const {
  const Example one = *get_batch({&index, 1});
  return {one.input[0], one.target[0]};
}

std::optional<Example> SyntheticDigits::get_batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) check_index("SyntheticDigits", index, n_);
  const int64_t n = int64_t(indices.size());
  Example batch{empty({n, 1, side, side}, {.device = cpu}), empty({n}, {.dtype = i64, .device = cpu})};
  float* picture = batch.input.data<float>();
  int64_t* label = batch.target.data<int64_t>();
  on_cpu::parallel_for(n, 256, [&](int64_t begin, int64_t end) {  // runs in parallel only for more than 256 images
    for (int64_t i = begin; i < end; ++i) {
      draw_digit(indices[size_t(i)], seed_, picture + i * digit_pixels);
      label[i] = indices[size_t(i)] % 10;
    }
  });
  return batch;
}

}  // namespace lockstep::data
