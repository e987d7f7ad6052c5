// Rotary position embedding (Su et al., RoFormer): rotates each pair (x[i], x[i + D/2]) of a token by the angle of its
// position. Memory bound: reads and writes x once; the tables stay in the cache.
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

/// A thread rotates V pairs. `rows` gives the offsets of rows in x, out and the tables, in the order of x's memory. out
/// may be x.
template <class T, class Table, int V>
__global__ void __launch_bounds__(threads)
    rotary_kernel(const T* x, const Table* cosine, const Table* sine, Compute<T> sign, Nest<3> rows, AnyDivider in_row,
                  int64_t count, T* out) {
  using A = Compute<T>;
  const int64_t half = in_row.by * V;
  for (int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x; n < count; n += int64_t(gridDim.x) * threads) {
    const int64_t row = in_row.divide(n), i = (n - row * in_row.by) * V;
    int64_t at[3] = {};
    rows.find(row, at);
    A a[V], b[V], c[V], s[V], y[V], z[V];
    load_values<V>(x + at[0] + i, a);
    load_values<V>(x + at[0] + half + i, b);
    load_values<V>(cosine + at[2] + i, c);
    load_values<V>(sine + at[2] + i, s);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      s[j] *= sign;
      y[j] = a[j] * c[j] - b[j] * s[j];
      z[j] = b[j] * c[j] + a[j] * s[j];
    }
    store_values<V>(out + at[1] + i, y);
    store_values<V>(out + at[1] + half + i, z);
  }
}

template <class T, class Table, int V>
void turn(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, const Nest<3>& rows, Tensor& out) {
  const int64_t in_row = x.shape().back() / 2 / V, count = x.numel() / 2 / V;
  cuda::launch({"rotary", dim3(cuda::blocks_for(count, threads)), dim3(threads)}, rotary_kernel<T, Table, V>,
               x.data<T>(), cosine.data<Table>(), sine.data<Table>(), Compute<T>(inverse ? -1 : 1), rows,
               AnyDivider(in_row, rows.narrow), count, out.data<T>());
}

}  // namespace

void rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, Tensor& out) {
  if (x.numel() == 0) return;
  const int64_t half = x.shape().back() / 2;
  Nest<3> rows;
  for (int d = 0; d < x.dim() - 1; ++d)
    rows.insert(x.shape()[d], {x.strides()[d], out.strides()[d], d == x.dim() - 2 ? half : 0}, 0);
  rows.join();
  rows.prepare();
  rows.narrow &= x.numel() < most_narrow;
  const auto run = [&]<class T, class Table> {
    constexpr int wide = vector_length<T, Table>;
    bool aligned = half % wide == 0 && is_aligned(x.data<T>(), wide) && is_aligned(out.data<T>(), wide) &&
                   is_aligned(cosine.data<Table>(), wide) && is_aligned(sine.data<Table>(), wide);
    for (int d = 0; d < x.dim() - 1; ++d) aligned &= x.strides()[d] % wide == 0 && out.strides()[d] % wide == 0;
    if (aligned) turn<T, Table, wide>(x, cosine, sine, inverse, rows, out);
    else turn<T, Table, 1>(x, cosine, sine, inverse, rows, out);
  };
  for_floats("rotary", x, [&]<class T> {
    if (cosine.dtype() == x.dtype()) return run.template operator()<T, T>();
    if constexpr (sizeof(T) == 2) run.template operator()<T, float>();  // 16-bit values, tables in f32
  });
}

}  // namespace lockstep::on_cuda
