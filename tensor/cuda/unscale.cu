// Checks many tensors for infinities and NaN and, if wanted, divides them by the loss scale, in one pass. One kernel
// launch processes up to 64 tensors of one dtype. Memory bound: each element is read (and written) once, 16 bytes per
// thread.
#include <vector>

#include "tensor/backend.h"
#include "tensor/cuda/vector.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256, max_tensors = 64;
/// Elements per block: four loads per thread.
template <class T> constexpr int64_t chunk = 4 * threads* vector_length<T>;

/// The tensors of a launch, as kernel parameters.
template <class T> struct List {
  T* data[max_tensors];
  int64_t n[max_tensors], first_chunk[max_tensors];
  int32_t place[max_tensors];  // index into `found`
  bool aligned[max_tensors];
  int32_t count;
};

template <class T, bool scales>
__global__ void __launch_bounds__(threads)
    look_through_kernel(List<T> list, int64_t chunks, Compute<T> factor, int32_t* found) {
  constexpr int V = vector_length<T>;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    int of = 0;  // the tensor that contains chunk c
    for (int behind = list.count; behind - of > 1;) {
      const int middle = (of + behind) / 2;
      if (list.first_chunk[middle] <= c) of = middle;
      else behind = middle;
    }
    T* const x = list.data[of];
    const Access access = list.aligned[of] ? Access::run : Access::apart;
    const int64_t begin = (c - list.first_chunk[of]) * chunk<T>, end = min(begin + chunk<T>, list.n[of]);
    bool bad = false;
    for (int64_t i = begin + int64_t(threadIdx.x) * V; i < end; i += int64_t(threads) * V) {
      const int count = end - i < V ? int(end - i) : V;
      Vector<T, V> v = load_vector<V>(x + i, access, 1, count);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const Compute<T> value = Compute<T>(v.v[j]);
        bad |= !(value - value == 0);  // x - x is NaN for infinities too
        if constexpr (scales) v.v[j] = T(value * factor);
      }
      if constexpr (scales) store_vector<V>(x + i, v, access, 1, count);
    }
    if (bad) atomicMax(found + list.place[of], 1);
  }
}

/// Checks the tensors of type T, and multiplies them by `factor` if `scales`. Sets a flag in `found` to 1 for a tensor
/// with an infinity or NaN: each tensor has its own flag if `apart`, else all share one.
template <class T, bool scales>
void look_through(const char* name, const std::vector<Tensor>& tensors, double factor, int32_t* found, bool apart) {
  List<T> list{};
  int64_t chunks = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    if (x.dtype() == dtype_of<T> && x.numel() > 0) {
      const int k = list.count++;
      list.data[k] = x.data<T>();
      list.n[k] = x.numel();
      list.first_chunk[k] = chunks;
      list.place[k] = apart ? int32_t(i) : 0;
      list.aligned[k] = is_aligned(list.data[k], vector_length<T>);
      chunks += (x.numel() + chunk<T> - 1) / chunk<T>;
    }
    if (list.count == 0 || (list.count < max_tensors && i + 1 < tensors.size())) continue;
    cuda::launch({name, dim3(cuda::blocks_for(chunks, 1)), dim3(threads)}, look_through_kernel<T, scales>, list, chunks,
                 Compute<T>(factor), found);
    list.count = 0, chunks = 0;
  }
}

template <bool scales>
void look_through_all(const char* name, const std::vector<Tensor>& tensors, double factor, int32_t* found, bool apart) {
  look_through<float, scales>(name, tensors, factor, found, apart);
  look_through<double, scales>(name, tensors, factor, found, apart);
  look_through<Half, scales>(name, tensors, factor, found, apart);
  look_through<BFloat16, scales>(name, tensors, factor, found, apart);
}

/// Looks through all tensors, and multiplies them by `factor` if `scales`. True if all elements are finite. Waits for
/// the device.
template <bool scales> bool is_finite(const char* name, const std::vector<Tensor>& tensors, double factor) {
  const cuda::Scratch found(sizeof(int32_t));
  cuda::check(name, cudaMemsetAsync(found.as<int32_t>(), 0, sizeof(int32_t), cuda::current_stream()));
  look_through_all<scales>(name, tensors, factor, found.as<int32_t>(), false);
  int32_t bad = 0;
  backend(Device::Type::cuda)
      ->copy_bytes(&bad, cpu, found.as<int32_t>(), {Device::Type::cuda, int16_t(cuda::current_device())}, sizeof bad,
                   true);
  return bad == 0;
}

}  // namespace

const void* some_kernel() { return reinterpret_cast<const void*>(look_through_kernel<float, false>); }

bool unscale(const std::vector<Tensor>& tensors, double factor) { return is_finite<true>("unscale", tensors, factor); }

bool all_finite(const Tensor& x) {
  return !is_floating(x.dtype()) || x.numel() == 0 || is_finite<false>("all_finite", {x.contiguous()}, 1);
}

void find_nonfinite(const std::vector<Tensor>& x, int32_t* found) {
  look_through_all<false>("find_nonfinite", x, 1, found, true);
}

}  // namespace lockstep::on_cuda
