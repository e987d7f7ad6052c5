#pragma once
// Launching the kernel of a planted bug.
#include <simt_cpu.h>  // tests/cudasim/

#include "tests/cudasim/mutants/mutants.h"

namespace mutants {

/// Launches a kernel; false if the launch is refused.
template <class... Parameters, class... Args>
bool start(dim3 grid, dim3 block, void (*kernel)(Parameters...), const Args&... args) {
  return simt::launch("mutant", grid, block, 0, nullptr, kernel, args...) == cudaSuccess;
}

/// What a kernel makes of 1, 2, 3, ...: so many outputs of so many inputs; NaN if the launch is refused.
template <class... Parameters, class... Args>
std::vector<float> results(dim3 grid, dim3 block, void (*kernel)(Parameters...), size_t inputs, size_t outputs,
                           const Args&... args) {
  const Array x(counting(inputs)), out(outputs);
  return start(grid, block, kernel, x, out, args...) ? out.get() : std::vector<float>(outputs, NAN);
}

/// The same for a kernel without inputs.
template <class... Parameters, class... Args>
std::vector<float> written(dim3 grid, dim3 block, void (*kernel)(Parameters...), size_t outputs, const Args&... args) {
  const Array out(outputs);
  return start(grid, block, kernel, out, args...) ? out.get() : std::vector<float>(outputs, NAN);
}

/// Opts the kernel in to more than 48 KiB of dynamic shared memory.
template <class Kernel> bool ask_for(int bytes, Kernel kernel) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              bytes) == cudaSuccess;
}

/// The sum over a warp, in every lane.
__device__ inline float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// Copied values, as integers.
inline std::vector<int> as_integers(const std::vector<float>& values) {
  std::vector<int> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(int));
  return bits;
}

}  // namespace mutants
