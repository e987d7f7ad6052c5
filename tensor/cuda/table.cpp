// CUDA's table of kernels.
#include "tensor/cuda/cuda_kernels.h"

namespace lockstep {

extern const Kernels cuda_kernels;  // for backend.cpp
#define LOCKSTEP_ENTRY(name) .name = on_cuda::name,
const Kernels cuda_kernels{LOCKSTEP_CUDA_KERNELS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY

}  // namespace lockstep
