#pragma once
// Datasets of images: digits that Lockstep draws itself (digits.cpp), and files in the format of MNIST (idx.cpp) or of
// CIFAR-10 (cifar.cpp).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "data/dataset.h"

namespace lockstep::data {

/// Synthetic digits in the shape of MNIST, drawn as strokes that are bent, scaled and noisy; they need no download.
/// Sample i is an image f32 (1, 28, 28) in [0, 1] of the digit i % 10, with that digit as an i64 scalar. A sample
/// depends only on (seed, i): use another seed for a test set.
class SyntheticDigits : public Dataset<Example> {
 public:
  /// n samples.
  explicit SyntheticDigits(int64_t n, uint64_t seed = 0);
  int64_t size() const override { return n_; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  int64_t n_;
  uint64_t seed_;
};

// IDX: 0, 0, dtype, number of dims, the sizes (32 bits each, big-endian), the elements.
/// Reads a plain or gzipped IDX file (recognized by its content) of u8, i8, i32, f32 or f64. The size is checked before
/// anything is allocated. Error for truncated, oversized or corrupt files, and for more than `max_bytes` of elements.
Tensor read_idx(const std::string& path, int64_t max_bytes = int64_t(1) << 30);
/// read_idx() of a file in memory. Errors begin with `origin`.
Tensor parse_idx(std::span<const std::byte> file, const std::string& origin, int64_t max_bytes = int64_t(1) << 30);

/// Reads MNIST, or a dataset in its format such as Fashion-MNIST, from a folder with train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz. Images are f32 (N, 1, H,
/// W) in [0, 1], labels i64 (N).
TensorDataset load_mnist(const std::string& folder, bool train);

// CIFAR-10, binary version: records of one label and 3 x 32 x 32 pixels (red, green and blue planes).
/// Reads one .bin file: images f32 (N, 3, 32, 32) in [0, 1], labels i64 (N). Error if the size is not a multiple of a
/// record or a label is above 9.
TensorDataset read_cifar10(const std::string& path);
/// Reads data_batch_1.bin .. data_batch_5.bin of a folder, or test_batch.bin if `train` is false.
TensorDataset load_cifar10(const std::string& folder, bool train);

// For readers of such datasets (images.cpp).
/// Converts u8 pixels to f32 in [0, 1], in the same shape.
Tensor images_from_bytes(const Tensor& bytes);
/// Converts u8 labels to i64. Error, with `origin`, if a label is not below `classes`.
Tensor labels_from_bytes(const Tensor& bytes, int classes, const std::string& origin);

}  // namespace lockstep::data
