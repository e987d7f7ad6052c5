// Many tensors divided by the loss scale, and looked through for infinities, in one pass: a launch for each 64 of them.
// Bound by memory: every element is read and written once, 16 bytes a thread.
#include <vector>

#include "tensor/backend.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256, most_tensors = 64;

template <class T> struct List {
  T* data[most_tensors];
  int64_t n[most_tensors];
  bool aligned[most_tensors];
};

/// Row y of the grid takes tensor y.
template <class T>
__global__ void __launch_bounds__(threads) unscale_kernel(List<T> list, Compute<T> factor, int* found) {
  constexpr int V = vector_length<T>;
  T* const x = list.data[blockIdx.y];
  const int64_t n = list.n[blockIdx.y];
  const Access access = list.aligned[blockIdx.y] ? Access::run : Access::apart;
  bool bad = false;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < n;
       i += int64_t(gridDim.x) * blockDim.x * V) {
    const int count = n - i < V ? int(n - i) : V;
    Vector<T, V> v = load_vector<V>(x + i, access, 1, count);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Compute<T> value = Compute<T>(v.v[j]);
      bad |= !(value - value == 0);  // NaN for infinities too
      v.v[j] = T(value * factor);
    }
    store_vector<V>(x + i, v, access, 1, count);
  }
  if (bad) atomicMax(found, 1);
}

template <class T> void unscale_all(const std::vector<Tensor>& tensors, double factor, int* found) {
  for (size_t first = 0; first < tensors.size(); first += most_tensors) {
    List<T> list{};
    int64_t largest = 0;
    const size_t count = std::min(tensors.size() - first, size_t(most_tensors));
    for (size_t i = 0; i < count; ++i) {
      const Tensor& x = tensors[first + i];
      list.data[i] = x.data<T>();
      list.n[i] = x.numel();
      list.aligned[i] = is_aligned(list.data[i], vector_length<T>);
      largest = std::max(largest, x.numel());
    }
    cuda::launch(
        {"unscale", dim3(cuda::blocks_for(largest, threads, vector_length<T>), unsigned(count)), dim3(threads)},
        unscale_kernel<T>, list, Compute<T>(factor), found);
  }
}

}  // namespace

bool unscale(const std::vector<Tensor>& tensors, double factor) {
  std::vector<Tensor> of[4];
  for (const Tensor& x : tensors) {
    if (x.numel() == 0) continue;
    of[x.dtype() == f32 ? 0 : x.dtype() == f64 ? 1 : x.dtype() == f16 ? 2 : 3].push_back(x);
  }
  const cuda::Scratch found(sizeof(int));
  cuda::check("unscale", cudaMemsetAsync(found.as<int>(), 0, sizeof(int), cuda::current_stream()));
  unscale_all<float>(of[0], factor, found.as<int>());
  unscale_all<double>(of[1], factor, found.as<int>());
  unscale_all<Half>(of[2], factor, found.as<int>());
  unscale_all<BFloat16>(of[3], factor, found.as<int>());
  int bad = 0;
  backend(Device::Type::cuda)
      ->copy_bytes(&bad, cpu, found.as<int>(), {Device::Type::cuda, int16_t(cuda::current_device())}, sizeof bad, true);
  return bad == 0;
}

}  // namespace lockstep::on_cuda
