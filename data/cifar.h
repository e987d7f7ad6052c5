#pragma once
// CIFAR-10, binary version: records of one label and 3 x 32 x 32 pixels (red, green and blue planes).
#include <string>

#include "data/dataset.h"

namespace lockstep::data {

/// Reads one .bin file: images f32 (N, 3, 32, 32) in [0, 1], labels i64 (N). Error if the size is not a multiple of a
/// record or a label is above 9.
TensorDataset read_cifar10(const std::string& path);
/// Reads data_batch_1.bin .. data_batch_5.bin of a folder, or test_batch.bin if `train` is false.
TensorDataset load_cifar10(const std::string& folder, bool train);

}  // namespace lockstep::data
