#pragma once
// Convolutions of f32 on the CPU by oneDNN. There is nothing to call: tensor/cpu/conv.cpp uses them where they are
// built.
#include <vector>

#include "tensor/conv_backend.h"

namespace lockstep {

/// oneDNN, for the list of tensor/conv_backend.h. It refuses dtypes other than f32, and shapes for which it has no fast
/// kernel.
std::vector<ConvBackend> onednn_convolutions();

}  // namespace lockstep
