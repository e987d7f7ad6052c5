// Copies and fills of any strides and element types.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/element.h"
#include "tensor/cuda/simt.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

/// Sizes and strides of a tensor, passed to a kernel by value.
struct View {
  int rank = 0;
  int64_t size[Dims::max_rank], stride[Dims::max_rank];

  explicit View(const Tensor& x) : rank(x.dim()) {
    for (int d = 0; d < rank; ++d) {
      size[d] = x.shape()[d];
      stride[d] = x.strides()[d];
    }
  }
  __device__ int64_t place(int64_t flat) const {
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      at += flat % size[d] * stride[d];
      flat /= size[d];
    }
    return at;
  }
};

template <class To, class From>
__global__ void copy_kernel(const From* source, View from, To* out, View to, int64_t n) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    out[to.place(i)] = convert<To>(source[from.place(i)]);
  }
}

template <class T>
__global__ void fill_kernel(T* out, View to, int64_t n, T value) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) out[to.place(i)] = value;
}

}  // namespace

void copy(const Tensor& source, Tensor& out) {
  const int64_t n = out.numel();
  dispatch_all(source.dtype(), "copy", [&]<class From> {
    dispatch_all(out.dtype(), "copy", [&]<class To> {
      cuda::launch({"copy", dim3(cuda::blocks_for(n, threads)), dim3(threads)}, copy_kernel<To, From>, source.data<From>(), View(source), out.data<To>(), View(out), n);
    });
  });
}

void fill(Tensor& out, double value) {
  const int64_t n = out.numel();
  dispatch_all(out.dtype(), "fill", [&]<class T> {
    cuda::launch({"fill", dim3(cuda::blocks_for(n, threads)), dim3(threads)}, fill_kernel<T>, out.data<T>(), View(out), n, convert<T>(value));
  });
}

}  // namespace lockstep::on_cuda
