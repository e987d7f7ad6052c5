// Running sums and products along a dim. If there are few lines, each line is cut into chunks: a first pass finds the
// total of each chunk, a second kernel the totals before each chunk, and the last pass writes the results. The chunks
// depend only on the shape. One thread processes a chunk of short or strided lines, a block any other chunk.
#include "extensions/operations/kernels.h"
#include "tensor/cuda/chunks.h"
#include "tensor/cuda/element.h"
#include "tensor/math.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned full_warp = 0xffffffffu;

/// The accumulator: f64 for floating types, so long sums stay accurate.
template <class T> using Carried = std::conditional_t<std::is_integral_v<T>, T, double>;

template <bool product, class A> __device__ A joined(A a, A b) {
  if constexpr (product) return math::times(a, b);
  else return math::plus(a, b);
}

/// The index in the line of the i-th element that a scan visits. If `reverse` is true, a scan begins at the line's end.
__device__ inline int64_t visited(const Lines& lines, bool reverse, int64_t i) { return reverse ? lines.n - 1 - i : i; }

/// Exclusive scan over the block: returns the sum (or product) of the values of all threads before the calling thread.
/// `all` becomes the sum (or product) over all threads.
template <bool product, class A> __device__ A scan_block(A value, A& all) {
  LOCKSTEP_SHARED(A, of_warp, [threads / 32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const A before = __shfl_up_sync(full_warp, sum, step);
    if (lane >= step) sum = joined<product>(before, sum);
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  A base = A(product);
  all = A(product);
#pragma unroll
  for (int w = 0; w < threads / 32; ++w) {
    if (w == warp) base = all;
    all = joined<product>(all, of_warp[w]);
  }
  const A before = __shfl_up_sync(full_warp, sum, 1);
  return lane == 0 ? base : joined<product>(base, before);
}

/// A block scans a chunk of a contiguous line, `each` elements per thread and step. If `out` is null, the kernel only
/// writes the total of each chunk to `totals`. Otherwise `totals` holds, for each chunk, the total of the chunks before
/// it in its line. (If each line is one chunk, `totals` is null.)
template <bool product, class T>
__global__ void __launch_bounds__(threads)
    scan_rows_kernel(const T* x, Lines lines, Chunks chunks, bool reverse, Carried<T>* totals, T* out) {
  using A = Carried<T>;
  constexpr int each = 8;
  for (int64_t item = blockIdx.x; item < lines.count() * chunks.count; item += gridDim.x) {
    const int64_t chunk = item / lines.count(), line = item - chunk * lines.count(), start = line * lines.n;
    const int64_t first = chunk * chunks.length, end = min(lines.n, first + chunks.length);
    A carry = out && totals ? totals[item] : A(product);
    for (int64_t base = first; base < end; base += threads * each) {
      const int64_t mine = base + int64_t(threadIdx.x) * each;
      A values[each], sum = A(product);
#pragma unroll
      for (int k = 0; k < each; ++k) {
        values[k] = mine + k < end ? convert<A>(x[start + visited(lines, reverse, mine + k)]) : A(product);
        sum = joined<product>(sum, values[k]);
      }
      A all, before = joined<product>(carry, scan_block<product>(sum, all));
      carry = joined<product>(carry, all);
      if (!out) continue;
#pragma unroll
      for (int k = 0; k < each; ++k) {
        before = joined<product>(before, values[k]);
        if (mine + k < end) out[start + visited(lines, reverse, mine + k)] = convert<T>(before);
      }
    }
    if (!out && threadIdx.x == 0) totals[item] = carry;
  }
}

/// Scans chunks of strided lines with one thread per chunk: neighbouring threads have neighbouring lines.
template <bool product, class T>
__global__ void __launch_bounds__(threads)
    scan_columns_kernel(const T* x, Lines lines, Chunks chunks, bool reverse, Carried<T>* totals, T* out) {
  using A = Carried<T>;
  const int64_t work = lines.count() * chunks.count;
  for (int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; item < work;
       item += int64_t(gridDim.x) * blockDim.x) {
    const int64_t chunk = item / lines.count(), line = item - chunk * lines.count(), start = lines.start(line);
    const int64_t first = chunk * chunks.length, end = min(lines.n, first + chunks.length);
    A sum = out && totals ? totals[item] : A(product);
    for (int64_t i = first; i < end; ++i) {
      const int64_t at = start + visited(lines, reverse, i) * lines.inner;
      sum = joined<product>(sum, convert<A>(x[at]));
      if (out) out[at] = convert<T>(sum);
    }
    if (!out) totals[item] = sum;
  }
}

/// Replaces the total of each chunk by the sum (or product) of the totals of all chunks before it in its line.
template <bool product, class A> __global__ void scan_totals_kernel(A* totals, int64_t lines, int64_t chunks) {
  for (int64_t line = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; line < lines;
       line += int64_t(gridDim.x) * blockDim.x) {
    A before = A(product);
    for (int64_t c = 0; c < chunks; ++c) {
      const A total = totals[c * lines + line];
      totals[c * lines + line] = before;
      before = joined<product>(before, total);
    }
  }
}

template <bool product, class T> void scan(const Tensor& x, const Lines& lines, bool reverse, Tensor& out) {
  using A = Carried<T>;
  const bool rows = lines.inner == 1 && lines.n > 64;
  const Chunks chunks = cut(lines, rows ? threads : 1, rows ? threads * 32 : 64);
  const cuda::Scratch scratch(chunks.count > 1 ? size_t(lines.count() * chunks.count) * sizeof(A) : 0);
  const auto run = [&](T* to) {
    cuda::launch(
        {"cumulative", dim3(cuda::blocks_for(lines.count() * chunks.count, rows ? 1 : threads)), dim3(threads)},
        rows ? scan_rows_kernel<product, T> : scan_columns_kernel<product, T>, x.data<T>(), lines, chunks, reverse,
        scratch.as<A>(), to);
  };
  if (chunks.count > 1) {
    run(nullptr);
    cuda::launch({"cumulative", dim3(cuda::blocks_for(lines.count(), 64)), dim3(64)}, scan_totals_kernel<product, A>,
                 scratch.as<A>(), lines.count(), chunks.count);
  }
  run(out.data<T>());
}

}  // namespace

void cumulative(bool product, const Tensor& x, int dim, bool reverse, Tensor& out) {
  if (x.numel() == 0) return;
  const Tensor source = x.to(out.dtype()).contiguous();
  const Lines lines(x, dim);
  dispatch<float, double, Half, BFloat16, int64_t>(out.dtype(), "cumulative", [&]<class T> {
    product ? scan<true, T>(source, lines, reverse, out) : scan<false, T>(source, lines, reverse, out);
  });
}

}  // namespace lockstep::on_cuda
