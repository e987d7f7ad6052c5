#pragma once
// Pixels and labels from bytes, for the readers of image sets.
#include <string>

#include "tensor/tensor.h"

namespace lockstep::data {

/// u8 to f32 in [0, 1].
Tensor images_from_bytes(const Tensor& bytes);
/// u8 to i64; Error with `origin` when one is not under `classes`.
Tensor labels_from_bytes(const Tensor& bytes, int classes, const std::string& origin);

}  // namespace lockstep::data
