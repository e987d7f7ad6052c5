#pragma once
// IDX, the format of MNIST: 0, 0, dtype, number of dims, the sizes (32 bits each, big-endian), the elements.
#include <string>

#include "data/dataset.h"
#include "data/files.h"

namespace lockstep::data {

/// Reads a plain or gzipped IDX file (recognized by its content) of u8, i8, i32, f32 or f64. The size is checked before
/// anything is allocated. Error for truncated, oversized or corrupt files, and for more than `max_bytes` of elements.
Tensor read_idx(const std::string& path, int64_t max_bytes = int64_t(1) << 30);
/// read_idx() of a file in memory. Errors begin with `origin`.
Tensor parse_idx(Bytes file, const std::string& origin, int64_t max_bytes = int64_t(1) << 30);

/// Reads MNIST, or a dataset in its format such as Fashion-MNIST, from a folder with train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz. Images are f32 (N, 1, H,
/// W) in [0, 1], labels i64 (N).
TensorDataset load_mnist(const std::string& folder, bool train);

}  // namespace lockstep::data
