// Arg max and arg min along a dim. If there are few lines, each line is cut into chunks, and a second kernel combines
// the results of the chunks in order. The chunks depend only on the shape. One thread processes a chunk of short or
// strided lines; a warp processes any other chunk.
#include "tensor/cuda/chunks.h"
#include "tensor/cuda/element.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned full_warp = 0xffffffffu;

/// A candidate for the maximum (or minimum): an element and its index `at`. at < 0: no candidate yet.
template <class C> struct Found {
  C value;
  int64_t at;
};
/// True if a is better than b: NaN is better than numbers; among equal values the lower index is better.
template <bool largest, class C> __device__ bool is_better(const Found<C>& a, const Found<C>& b) {
  if (a.at < 0 || b.at < 0) return b.at < 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan && (!b_nan || a.at < b.at);
  return a.value == b.value ? a.at < b.at : largest ? a.value > b.value : a.value < b.value;
}

/// `shared` threads (1 or 32) search a chunk. If there is one chunk per line, the result is final; else it goes to
/// `partial` for join_best_kernel.
template <bool largest, class T, int shared>
__global__ void __launch_bounds__(threads)
    best_kernel(const T* x, Lines lines, Chunks chunks, Found<Compute<T>>* partial, T* values, int64_t* indices) {
  using C = Compute<T>;
  const int lane = threadIdx.x % shared;
  const int64_t work = lines.count() * chunks.count;
  for (int64_t first = int64_t(blockIdx.x) * (threads / shared); first < work;
       first += int64_t(gridDim.x) * (threads / shared)) {
    const int64_t item = first + threadIdx.x / shared;
    if (item >= work) continue;  // true for all lanes of a warp or none, so shuffles below stay complete
    const int64_t chunk = item / lines.count(), line = item - chunk * lines.count();
    const T* p = x + lines.start(line);
    Found<C> best{C(0), -1};
    const int64_t end = min(lines.n, (chunk + 1) * chunks.length);
    for (int64_t i = chunk * chunks.length + lane; i < end; i += shared) {
      const Found<C> here{load(p + i * lines.inner), i};
      if (is_better<largest>(here, best)) best = here;
    }
    if constexpr (shared > 1) {
#pragma unroll
      for (int step = shared / 2; step > 0; step /= 2) {
        // Unary + promotes small integers to int: shuffles move 4 or 8 bytes.
        const Found<C> other{C(__shfl_xor_sync(full_warp, +best.value, step)),
                             __shfl_xor_sync(full_warp, best.at, step)};
        if (is_better<largest>(other, best)) best = other;
      }
      if (lane > 0) continue;
    }
    if (chunks.count == 1) indices[line] = best.at, values[line] = p[best.at * lines.inner];
    else partial[item] = best;
  }
}

/// Joins the candidates of a line's chunks.
template <bool largest, class T>
__global__ void join_best_kernel(const T* x, Lines lines, Chunks chunks, const Found<Compute<T>>* partial, T* values,
                                 int64_t* indices) {
  for (int64_t line = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; line < lines.count();
       line += int64_t(gridDim.x) * blockDim.x) {
    Found<Compute<T>> best = partial[line];
    for (int64_t c = 1; c < chunks.count; ++c) {
      const Found<Compute<T>> other = partial[c * lines.count() + line];
      if (is_better<largest>(other, best)) best = other;
    }
    indices[line] = best.at, values[line] = x[lines.start(line) + best.at * lines.inner];
  }
}

template <bool largest, class T> void find_best(const Tensor& x, const Lines& lines, Tensor& values, Tensor& indices) {
  const T* p = static_cast<const T*>(x.raw_data());
  T* to = static_cast<T*>(values.raw_data());
  const bool shares = lines.inner == 1 && lines.n > 4;
  const Chunks chunks = cut(lines, shares ? 32 : 1, shares ? 1024 : 64);
  const cuda::Scratch scratch(chunks.count > 1 ? size_t(lines.count() * chunks.count) * sizeof(Found<Compute<T>>) : 0);
  const auto partial = scratch.as<Found<Compute<T>>>();
  const int64_t work = lines.count() * chunks.count;
  cuda::launch({"arg_reduce", dim3(cuda::blocks_for(work, shares ? threads / 32 : threads)), dim3(threads)},
               shares ? best_kernel<largest, T, 32> : best_kernel<largest, T, 1>, p, lines, chunks, partial, to,
               indices.data<int64_t>());
  if (chunks.count == 1) return;
  cuda::launch({"arg_reduce", dim3(cuda::blocks_for(lines.count(), 64)), dim3(64)}, join_best_kernel<largest, T>, p,
               lines, chunks, partial, to, indices.data<int64_t>());
}

}  // namespace

void arg_reduce(bool largest, const Tensor& x, int dim, Tensor& values, Tensor& indices) {
  if (values.numel() == 0) return;
  const Tensor rows = x.contiguous();
  const Lines lines(x, dim);
  // A bool is compared as a byte.
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(
      x.dtype() == boolean ? u8 : x.dtype(), "arg_reduce", [&]<class T> {
        largest ? find_best<true, T>(rows, lines, values, indices) : find_best<false, T>(rows, lines, values, indices);
      });
}

}  // namespace lockstep::on_cuda
