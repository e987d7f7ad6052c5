#pragma once
// The only CUDA header that a kernel file includes. nvcc compiles the file for the GPU. With -Dcuda=simulated the C++
// compiler compiles the same file, and tests/cudasim/ runs its blocks on the CPU, so that every kernel is executed,
// under sanitizers and in any order of threads, on machines without a GPU. Therefore kernels
//   - declare shared arrays with LOCKSTEP_SHARED(float, name, [32]) and LOCKSTEP_DYNAMIC_SHARED(float, name),
//   - are started by cuda::launch(), never by <<<>>>,
//   - use neither CUB nor cooperative groups, and PTX only in functions that have a C++ twin.
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define LOCKSTEP_SHARED(T, name, ...) __shared__ T name __VA_ARGS__
#define LOCKSTEP_DYNAMIC_SHARED(T, name)                           \
  extern __shared__ __align__(16) unsigned char dynamic_shared_[]; \
  T* name = reinterpret_cast<T*>(dynamic_shared_)
#else
#include <simt_cpu.h>  // tests/cudasim/
#endif

#include "base/check.h"
#include "tensor/cuda/runtime.h"

namespace lockstep::cuda {

/// The shape of a launch: `op` is named in errors, `shared` is bytes of dynamic shared memory.
struct Launch {
  const char* op;
  dim3 grid, block;
  size_t shared = 0;
};

/// Starts a kernel on this thread's current device and stream. An empty grid (from an empty tensor) does nothing. On
/// failure, throws an error that names the operation, the launch and the stream.
template <class... Parameters, class... Args>
void launch(const Launch& config, void (*kernel)(Parameters...), Args&&... args) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  const cudaStream_t stream = current_stream();
  // More than 48 KiB of dynamic shared memory needs opting in.
  if (config.shared > 48 * 1024)
    check(config.op, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, int(config.shared)));
#if defined(__CUDACC__)
  kernel<<<config.grid, config.block, config.shared, stream>>>(Parameters(args)...);
  const cudaError_t code = cudaGetLastError();
#else
  const cudaError_t code =
      simt::launch(config.op, config.grid, config.block, config.shared, stream, kernel, std::forward<Args>(args)...);
#endif
  if (code != cudaSuccess) [[unlikely]]
    fail_launch(config.op, config.grid, config.block, config.shared, stream, code);
}

/// The number of blocks of `threads` threads for n elements, `per_thread` for each thread, but at most max_blocks().
/// A kernel must loop, because these blocks may not cover all n elements.
inline unsigned blocks_for(int64_t n, int threads, int64_t per_thread = 1) {
  const int64_t blocks = (n + int64_t(threads) * per_thread - 1) / (int64_t(threads) * per_thread);
  return unsigned(std::min<int64_t>(blocks, max_blocks()));
}

/// The number of blocks for kernels with one block per work item. Throws if it exceeds the limit of a grid in x.
inline unsigned blocks_of(const char* op, int64_t pieces) {
  LOCKSTEP_CHECK(pieces <= INT32_MAX, "[", op, "] expected at most ", INT32_MAX, " blocks, the limit of a launch, got ",
                 pieces, ": process the batch in parts");
  return unsigned(pieces);
}

}  // namespace lockstep::cuda
