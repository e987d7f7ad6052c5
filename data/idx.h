#pragma once
// IDX, the format of MNIST: 0, 0, dtype, number of dims, the sizes (32 bits each, big-endian), the elements.
#include <string>

#include "data/dataset.h"
#include "data/files.h"

namespace lockstep::data {

/// Reads an IDX file, plain or gzip (told apart by content): u8, i8, i32, f32 or f64. The size is known and checked
/// before anything is allocated: truncated, oversized and corrupt files, and those of more than `max_bytes` elements,
/// are Errors.
Tensor read_idx(const std::string& path, int64_t max_bytes = int64_t(1) << 30);
/// The same from memory; `origin` opens the Errors.
Tensor parse_idx(Bytes file, const std::string& origin, int64_t max_bytes = int64_t(1) << 30);

/// MNIST, or a set in its form (Fashion-MNIST, ...), from a folder with train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz: images f32 (N, 1, H, W) in
/// [0, 1], labels i64 (N).
TensorDataset load_mnist(const std::string& folder, bool train);

}  // namespace lockstep::data
