#pragma once
// CIFAR-10, binary version: records of one label and 3 x 32 x 32 pixels (red, green, blue planes).
#include <string>

#include "data/dataset.h"

namespace lockstep::data {

/// Images f32 (N, 3, 32, 32) in [0, 1], labels i64 (N) of one .bin file.
TensorDataset read_cifar10(const std::string& path);
/// data_batch_1.bin .. data_batch_5.bin, or test_batch.bin, of a folder.
TensorDataset load_cifar10(const std::string& folder, bool train);

}  // namespace lockstep::data
