// The step of Signum on CUDA devices.
#include "sign_step.h"
#include "tensor/cuda/simt.h"

namespace signs {
using namespace lockstep;

template <class T> __global__ void step_kernel(T* p, const T* grad, T* m, int64_t n, SignStep o) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    sign_step(p[i], m[i], grad[i], o);
}

void step_on_cuda(Tensor& p, const Tensor& grad, Tensor& m, const SignStep& o) {
  const int64_t n = p.numel();
  dispatch<float, double>(p.dtype(), "sign_step", [&]<class T> {
    cuda::launch({"sign_step", dim3(cuda::blocks_for(n, 256)), dim3(256)}, step_kernel<T>, p.data<T>(), grad.data<T>(),
                 m.data<T>(), n, o);
  });
}

}  // namespace signs
