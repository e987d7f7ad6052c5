// Arg max, arg min and cumulative sums and products along a dim. If there are few lines, each line is cut into chunks,
// and a second kernel combines the results of the chunks in order. The chunks depend only on the shape. One thread
// processes a chunk of short or strided lines; a warp or a block processes any other chunk.
#include "tensor/cuda/element.h"
#include "tensor/cuda/lines.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned full_warp = 0xffffffffu;
constexpr int64_t wanted = 1 << 17;  // threads that fill a large device

/// The number of chunks of each line, and their length. Work item i is chunk i / lines of line i % lines.
struct Chunks {
  int64_t count = 1, length = 1;
};
// Divides each line into chunks, at most one chunk per `least` elements. `sharers` threads work on each chunk.
Chunks cut(const Lines& lines, int64_t sharers, int64_t least) {
  Chunks chunks;
  chunks.count = std::clamp<int64_t>(wanted / (lines.count() * sharers), 1,
                                     std::min<int64_t>(1024, (lines.n + least - 1) / least));
  chunks.length = (lines.n + chunks.count - 1) / chunks.count;
  chunks.count = (lines.n + chunks.length - 1) / chunks.length;
  return chunks;
}

// --- arg max ---

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

// --- cumulative sums and products ---

/// The accumulator: f64 for floating types, so long sums stay accurate.
template <class T> using Carried = std::conditional_t<std::is_integral_v<T>, T, double>;

template <bool product, class A> __device__ A joined(A a, A b) {
  if constexpr (product) return functor::times(a, b);
  else return functor::plus(a, b);
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

void cumulative(bool product, const Tensor& x, int dim, bool reverse, Tensor& out) {
  if (x.numel() == 0) return;
  const Tensor source = x.to(out.dtype()).contiguous();
  const Lines lines(x, dim);
  dispatch<float, double, Half, BFloat16, int64_t>(out.dtype(), "cumulative", [&]<class T> {
    product ? scan<true, T>(source, lines, reverse, out) : scan<false, T>(source, lines, reverse, out);
  });
}

}  // namespace lockstep::on_cuda
