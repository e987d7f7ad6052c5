// Sums of a matrix's columns: the gradient of a bias. Memory bound: each element is read once, 16 bytes at a time, and
// each thread loads eight rows at once. Every sum is added in the same order as in a norm's backward (column_sums.h),
// whose blocks and warps take the same rows.
#include "tensor/cuda/column_sums.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int max_threads = 384, max_slices = 32;

/// Blocks with the same blockIdx.y sum the same `width` columns. Threads with the same threadIdx.y sum the same rows,
/// each in columns of its own. Then the block adds these sums in the order of threadIdx.y.
template <class Row>
__global__ void __launch_bounds__(max_threads, 2)
    column_sums_kernel(const typename Row::T* __restrict__ x, int64_t rows, int64_t columns, int64_t width,
                       SumArgs<typename Row::T> args) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V, lines = lines_of<Row>, flight = 8;
  using Places = SumPlaces<A, V>;
  using Word = typename Places::Word;
  const Places places{int(blockDim.x)};
  const int64_t first_column = blockIdx.y * width, here = min(width, columns - first_column),
                line = int64_t(blockIdx.x) * lines + threadIdx.y, step = int64_t(gridDim.x) * lines;
  args.sums += blockIdx.y * (gridDim.x * places.size(width));
  args.counters += blockIdx.y * counters_of(gridDim.x);
  args.to[0] += first_column;
  A* const mine = args.sums + blockIdx.x * places.size(here);
  int k = 0;
  for (int64_t first = 0; first < here; first += int64_t(blockDim.x) * V, ++k) {
    const int64_t column = first + int64_t(threadIdx.x) * V;
    A sum[V] = {};
    if (column < here) {
      const T* row = x + line * columns + first_column + column;
#pragma unroll 1
      for (int64_t left = (rows - line + step - 1) / step; left > 0; left -= flight) {
        Vector<T, V> in[flight];
#pragma unroll
        for (int u = 0; u < flight; ++u, row += step * columns)
          if (u < left) in[u] = *reinterpret_cast<const Vector<T, V>*>(row);
#pragma unroll
        for (int u = 0; u < flight; ++u) {
          if (u >= left) break;
#pragma unroll
          for (int j = 0; j < V; ++j) sum[j] += A(Compute<T>(in[u].v[j]));
        }
      }
    }
    if constexpr (lines > 1) {
      LOCKSTEP_SHARED(Word, joined, [max_threads / lines * V / Places::W]);
      A* const others = reinterpret_cast<A*>(joined);
      for (int w = 0; w < lines; ++w) {
        if (int(threadIdx.y) == w && column < here) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            const int at = int(places.of(0, j, int(threadIdx.x)));
            if (w > 0) sum[j] = others[at] + sum[j];
            others[at] = sum[j];
          }
        }
        __syncthreads();
      }
    }
    if (int(threadIdx.y) < lines - 1) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) mine[places.of(k, j, int(threadIdx.x))] = sum[j];
  }
  finish_sums<6>(args, places, here, 1);
}

}  // namespace

void column_sums(const Tensor& in, Tensor& out) {
  const int64_t rows = in.size(0), n = in.size(1);
  if (n == 0) return;
  const Tensor x = aligned(in.contiguous());
  for_floats("column_sums", x, [&]<class T> {
    // Chooses the same Row class as the gradient of a norm does, so that both add in the same order.
    with_rows<T, 2, 2>(n, n, {x.raw_data()}, [&]<class Row> {
      constexpr int lines = lines_of<Row>;
      const int64_t blocks = sum_blocks<Row>(rows), vectors = (n + Row::V - 1) / Row::V;
      // Divides the columns into strips of about equal width, so narrow that a block has a thread for each vector.
      const int64_t strips = (vectors * lines + max_threads - 1) / max_threads,
                    across = ((vectors + strips - 1) / strips + warp - 1) / warp * warp,
                    width = (strips + max_slices - 1) / max_slices * across * Row::V, slices = (n + width - 1) / width;
      const SumPlaces<Compute<T>, Row::V> places{int(across)};
      const cuda::Scratch sums(size_t(slices * blocks * places.size(width)) * sizeof(Compute<T>));
      const SumArgs<T> args{sums.as<Compute<T>>(),
                            cuda::counters("column_sums", slices * counters_of(blocks)),
                            {out.data<T>(), nullptr, nullptr}};
      cuda::launch({"column_sums", dim3(unsigned(blocks), unsigned(slices)), dim3(unsigned(across), lines)},
                   column_sums_kernel<Row>, x.data<T>(), rows, n, width, args);
    });
  });
}

}  // namespace lockstep::on_cuda
