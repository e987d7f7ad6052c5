#pragma once
// Images and labels from bytes, for the readers of image datasets.
#include <string>

#include "tensor/tensor.h"

namespace lockstep::data {

/// Converts u8 pixels to f32 in [0, 1], in the same shape.
Tensor images_from_bytes(const Tensor& bytes);
/// Converts u8 labels to i64. Error, with `origin`, if a label is not below `classes`.
Tensor labels_from_bytes(const Tensor& bytes, int classes, const std::string& origin);

}  // namespace lockstep::data
