#pragma once
// Random image transforms for training, with the names, meaning and defaults of torchvision.
//
//   const Compose augment({RandomResizedCrop{.height = 32, .width = 32}, RandomHorizontalFlip{}, ToTensor{}});
//   ImageFolder train("train", augment);
//
// Transforms draw from the thread's generator. Under a DataLoader, numbers drawn in Dataset::get() depend only on
// (seed, epoch, sample index): they are the same for any number of workers, and after a resume. Each transform takes
// one random key (tensor/random.h), so the number of its draws never changes what the next transform draws.
//
// operator() of each transform takes an image (channels, height, width) and returns the changed one. Error for invalid
// options or an unsupported dtype or shape.
#include <functional>
#include <vector>

#include "data/dataset.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// A function from image to image: (channels, height, width), u8 or f32.
using Transform = std::function<Tensor(const Tensor&)>;

/// An interval to draw from.
struct UniformRange {
  double low, high;
};

/// Applies transforms one after the other.
class Compose {
 public:
  /// Error if a step is empty.
  Compose(std::vector<Transform> steps);
  Tensor operator()(Tensor x) const {  ///< applies all steps
    for (const Transform& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<Transform> steps_;
};

/// Resizes. With width 0 the shorter edge gets `height` pixels, and the aspect ratio is kept.
struct Resize {
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& x) const;  ///< the resized image
};
/// Crops around the center. An image that is too small is padded with zeros.
struct CenterCrop {
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& x) const;  ///< the crop
};
/// Crops at a random position, after padding.
struct RandomCrop {
  int64_t height = 0, width = 0, padding = 0;  ///< padding: pixels added on all four sides
  bool pad_if_needed = false;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;  ///< the crop
};
/// Crops a random rectangle and resizes it. Its share of the area is drawn from `scale`, width / height from `ratio`.
struct RandomResizedCrop {
  int64_t height = 0, width = 0;
  UniformRange scale{0.08, 1}, ratio{3. / 4, 4. / 3};
  Tensor operator()(const Tensor& x) const;  ///< the resized crop
};
/// Mirrors left and right with probability p.
struct RandomHorizontalFlip {
  double p = 0.5;
  Tensor operator()(const Tensor& x) const;  ///< x or its mirror image
};
/// Mirrors top and bottom with probability p.
struct RandomVerticalFlip {
  double p = 0.5;
  Tensor operator()(const Tensor& x) const;  ///< x or its mirror image
};
/// Rotates by a random angle in [-degrees, degrees].
struct RandomRotation {
  double degrees = 0;
  bool bilinear = false;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;  ///< the rotated image
};
/// In random order, multiplies brightness, contrast and saturation by random factors in [max(0, 1 - b), 1 + b], where b
/// is the field of that name, and shifts the hue by a number in [-hue, hue]. A field of 0 switches its change off.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  Tensor operator()(const Tensor& x) const;  ///< the changed image
};
/// Converts to gray, with 1 or 3 equal channels.
struct Grayscale {
  int64_t channels = 1;
  Tensor operator()(const Tensor& x) const;  ///< the gray image
};
/// Converts u8 to f32 in [0, 1]. f32 stays as it is.
struct ToTensor {
  Tensor operator()(const Tensor& x) const;  ///< f32
};
/// f32: (x - mean) / deviation, with one value per channel or one for all.
struct Normalize {
  std::vector<double> mean, deviation;
  Tensor operator()(const Tensor& x) const;  ///< the normalized image
};
/// With probability p, overwrites a random rectangle with `value` or normal noise (f32 only). The rectangle's share of
/// the area is drawn from `scale`, its height / width from `ratio`.
struct RandomErasing {
  double p = 0.5;
  UniformRange scale{0.02, 0.33}, ratio{0.3, 3.3};
  double value = 0;
  bool noise = false;
  Tensor operator()(const Tensor& x) const;  ///< x or the changed image
};
/// Applies `operations` random operations out of 14, with repetition, each at magnitude / (bins - 1) of its maximum
/// strength. u8 only. Cubuk et al. 2020 (RandAugment).
struct RandAugment {
  int64_t operations = 2, magnitude = 9, bins = 31;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;  ///< the changed image
};

/// Mixes each sample of a batch (input f32 (N, ...), target i64 (N)) with the previous one, with a weight drawn from
/// Beta(alpha, alpha). Targets become f32 (N, classes). Zhang et al. 2018. Use it in LoaderOptions::collate, where
/// random numbers depend only on (seed, epoch, first sample of the batch):
///   .collate = [](auto samples) { return MixUp{10}(data::collate(samples)); }
struct MixUp {
  int64_t classes = 0;
  double alpha = 1;
  Example operator()(const Example& batch) const;  ///< the mixed batch
};
/// Pastes a random rectangle of the previous image into each image and mixes the targets by area: input (N, channels,
/// height, width), u8 or f32. Yun et al. 2019.
struct CutMix {
  int64_t classes = 0;
  double alpha = 1;
  Example operator()(const Example& batch) const;  ///< the mixed batch
};

}  // namespace lockstep::data
