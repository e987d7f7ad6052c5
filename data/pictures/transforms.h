#pragma once
// Random changes of pictures for training, under torchvision's names, with its meaning and defaults.
//
//   const Compose augment({RandomResizedCrop{.height = 32, .width = 32}, RandomHorizontalFlip{}, ToTensor{}});
//   ImageFolder train("train", augment);
//
// A transform draws from the generator of its thread, which in Dataset::get() under a DataLoader depends on (seed,
// epoch, index of the sample) alone: the same bits for any number of workers, and after a resume. Each takes one key of
// it (tensor/random.h), however much it then draws, so that one never changes what the next one draws.
#include <functional>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "tensor/tensor.h"

namespace lockstep::data {

/// Of a picture (channels, height, width), u8 or f32.
using Transform = std::function<Tensor(const Tensor&)>;

struct Range {
  double low, high;
};

/// One after the other.
class Compose {
 public:
  Compose(std::vector<Transform> steps);
  Tensor operator()(Tensor x) const {
    for (const Transform& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<Transform> steps_;
};

/// width 0: the shorter edge gets `height` pixels, and the other keeps the ratio.
struct Resize {
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& x) const;
};
/// A picture that is too small gets zeros around it.
struct CenterCrop {
  int64_t height = 0, width = 0;
  Tensor operator()(const Tensor& x) const;
};
struct RandomCrop {
  int64_t height = 0, width = 0, padding = 0;  ///< padding: on all four sides
  bool pad_if_needed = false;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;
};
/// A part of `scale` of the area, of a `ratio` of width to height, resized.
struct RandomResizedCrop {
  int64_t height = 0, width = 0;
  Range scale{0.08, 1}, ratio{3. / 4, 4. / 3};
  Tensor operator()(const Tensor& x) const;
};
struct RandomHorizontalFlip {
  double p = 0.5;
  Tensor operator()(const Tensor& x) const;
};
struct RandomVerticalFlip {
  double p = 0.5;
  Tensor operator()(const Tensor& x) const;
};
/// By an angle in [-degrees, degrees].
struct RandomRotation {
  double degrees = 0;
  bool bilinear = false;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;
};
/// Factors in [max(0, 1 - b), 1 + b], a turn of the colours in [-hue, hue], in a random order. 0: not at all.
struct ColorJitter {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  Tensor operator()(const Tensor& x) const;
};
struct Grayscale {
  int64_t channels = 1;
  Tensor operator()(const Tensor& x) const;
};
/// u8 to f32 in [0, 1]; f32 stays as it is.
struct ToTensor {
  Tensor operator()(const Tensor& x) const;
};
/// f32: (x - mean) / deviation, of each channel, or one number for all.
struct Normalize {
  std::vector<double> mean, deviation;
  Tensor operator()(const Tensor& x) const;
};
/// A part of `scale` of the area, of a `ratio` of height to width, becomes `value`, or normal noise (f32).
struct RandomErasing {
  double p = 0.5;
  Range scale{0.02, 0.33}, ratio{0.3, 3.3};
  double value = 0;
  bool noise = false;
  Tensor operator()(const Tensor& x) const;
};
/// `operations` of 14, drawn with repetition, at strength `magnitude` of `bins` (Cubuk et al., 2020). u8.
struct RandAugment {
  int64_t operations = 2, magnitude = 9, bins = 31;
  double fill = 0;
  Tensor operator()(const Tensor& x) const;
};

/// A batch (input f32 (N, ...), target i64 (N)) mixed with itself moved by one sample, by a part that Beta(alpha,
/// alpha) gives; targets become f32 (N, classes). For LoaderOptions::collate, where the draws depend on (seed, epoch,
/// the batch's first sample):  .collate = [](auto samples) { return MixUp{10}(data::collate(samples)); }
struct MixUp {
  int64_t classes = 0;
  double alpha = 1;
  Example operator()(const Example& batch) const;
};
/// The same with a rectangle of the other picture pasted in: input (N, channels, height, width), u8 or f32.
struct CutMix {
  int64_t classes = 0;
  double alpha = 1;
  Example operator()(const Example& batch) const;
};

}  // namespace lockstep::data
