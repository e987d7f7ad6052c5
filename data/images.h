#pragma once
// Images and labels from bytes, for the readers of image datasets.
#include <string>

#include "tensor/tensor.h"

namespace lockstep::data {

/// u8 to f32 in [0, 1], same shape.
Tensor images_from_bytes(const Tensor& bytes);
/// u8 to i64. Error if a label is not below `classes`; it names `origin`.
Tensor labels_from_bytes(const Tensor& bytes, int classes, const std::string& origin);

}  // namespace lockstep::data
