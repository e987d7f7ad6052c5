#pragma once
// Convolutions on CUDA devices by cuDNN. There is nothing to call: tensor/cuda/conv.cu uses them where they are built,
// unless LOCKSTEP_CUDNN is 0.
#include <vector>

#include "tensor/conv_backend.h"

namespace lockstep {

/// cuDNN, for the list of tensor/conv_backend.h. It refuses f64, and calls for which cuDNN has no engine that gives the
/// same bits each time and sums in f32. Its functions throw if cuDNN accepted a call and failed.
std::vector<ConvBackend> cudnn_convolutions();

}  // namespace lockstep
