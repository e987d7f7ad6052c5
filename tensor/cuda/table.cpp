// CUDA's table of kernels (tensor/kernels.h).
#include "tensor/cuda/cuda_kernels.h"

namespace lockstep {

extern const Kernels cuda_kernels;  // used by backend.cpp
constinit const Kernels cuda_kernels = [] {
  Kernels kernels{};
#define LOCKSTEP_ENTRY(name) kernels.name = on_cuda::name;
  LOCKSTEP_CUDA_KERNELS(LOCKSTEP_ENTRY)
#undef LOCKSTEP_ENTRY
  return kernels;
}();

}  // namespace lockstep
