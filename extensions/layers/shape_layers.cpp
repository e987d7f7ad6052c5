// Layers that rearrange elements. See shape_layers.h.
#include "extensions/layers/shape_layers.h"

#include <algorithm>

namespace lockstep::nn {

namespace {

int64_t positive(const char* layer, const char* what, int64_t n) {
  LOCKSTEP_CHECK(n > 0, "[", layer, "] expected ", what, " > 0, got ", n);
  return n;
}

/// Number of images (C, H, W) in x.
int64_t images_of(const Shape& x) { return numel_of(Shape(x.begin(), x.end() - 3)); }

/// x's shape with its last three sizes replaced.
Shape with_image(Shape x, const Shape& image) {
  std::copy_n(image.begin(), 3, x.end() - 3);
  return x;
}

}  // namespace

Unflatten::Unflatten(const Options& options) : o(options) {
  const auto& sizes = o.shape;
  LOCKSTEP_CHECK(!sizes.empty(), "[Unflatten] expected a shape of at least one dim, got an empty one; set .shape");
  LOCKSTEP_CHECK(std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= -1; }) &&
                     std::count(sizes.begin(), sizes.end(), -1) <= 1,
                 "[Unflatten] expected sizes >= 0, and at most one of -1, got ", sizes);
}
Variable Unflatten::forward(const Variable& x) {
  const int dim = normalize_dim("Unflatten", o.dim, x.dim());
  LOCKSTEP_CHECK(x.dim() > 0, "[Unflatten] expected input of at least one dim, got ", x.shape(), "; unsqueeze(0) it");
  const int64_t size = x.size(dim);
  Shape sizes = o.shape;
  int64_t* const open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    const int64_t known = -numel_of(sizes);
    *open = known > 0 ? size / known : 0;
  }
  LOCKSTEP_CHECK(numel_of(sizes) == size, "[Unflatten] expected sizes whose product is ", size, ", dim ", o.dim, " of ",
                 x.shape(), ", got ", o.shape, "; change the sizes, or the input");
  Shape shape = x.shape();
  shape.erase(dim);
  for (int i = 0; i < sizes.rank(); ++i) shape.insert(dim + i, sizes[i]);
  return x.reshape(shape);
}

PixelShuffle::PixelShuffle(const Options& o) : factor(positive("PixelShuffle", "factor", o.factor)) {}
Variable PixelShuffle::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() >= 3 && x.size(-3) % (factor * factor) == 0,
                 "[PixelShuffle] expected input (..., C, H, W) with C a multiple of ", factor * factor, ", got ",
                 x.shape(), "; reshape the input, or change factor");
  const int64_t c = x.size(-3) / (factor * factor), h = x.size(-2), w = x.size(-1);
  const Shape shape = with_image(x.shape(), {c, h * factor, w * factor});
  return x.reshape({images_of(x.shape()), c, factor, factor, h, w}).permute({0, 1, 4, 2, 5, 3}).reshape(shape);
}

PixelUnshuffle::PixelUnshuffle(const Options& o) : factor(positive("PixelUnshuffle", "factor", o.factor)) {}
Variable PixelUnshuffle::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() >= 3 && x.size(-2) % factor == 0 && x.size(-1) % factor == 0,
                 "[PixelUnshuffle] expected input (..., C, H, W) with H and W multiples of ", factor, ", got ",
                 x.shape(), "; reshape, crop or pad the input");
  const int64_t c = x.size(-3), h = x.size(-2) / factor, w = x.size(-1) / factor;
  const Shape shape = with_image(x.shape(), {c * factor * factor, h, w});
  return x.reshape({images_of(x.shape()), c, h, factor, w, factor}).permute({0, 1, 3, 5, 2, 4}).reshape(shape);
}

ChannelShuffle::ChannelShuffle(const Options& o) : groups(positive("ChannelShuffle", "groups", o.groups)) {}
Variable ChannelShuffle::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() >= 3 && x.size(1) % groups == 0,
                 "[ChannelShuffle] expected input (N, C, ...) with C a multiple of ", groups,
                 ", of at least 3 dims, got ", x.shape(), "; reshape the input, or change groups");
  const int64_t behind = numel_of(Shape(x.shape().begin() + 2, x.shape().end()));
  return x.reshape({x.size(0), groups, x.size(1) / groups, behind}).transpose(1, 2).reshape(x.shape());
}

}  // namespace lockstep::nn
