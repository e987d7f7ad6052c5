// Rotary position embedding (Su et al., RoFormer): rotates each pair (x[i], x[i + D/2]) of a token by the angle of its
// position. Memory bound: reads and writes x once, 16 bytes at a time. A thread rotates the same pairs of up to 4
// heads, so it reads the tables of sines and cosines once for 4 heads, and has 8 loads of x in flight.
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

constexpr int max_heads = 4;

/// The number of heads whose rows a thread rotates by the same angles, and the strides between these rows in x and out.
struct Heads {
  int count = 1;
  int64_t x_stride = 0, out_stride = 0;
};

/// A thread rotates V pairs of each of its heads. `rows` maps the number of its first head's row (in the order of x's
/// memory) to the row's offsets in x, in out and in the tables. out may be x.
template <class T, class Table, int V>
__global__ void __launch_bounds__(threads)
    rotary_kernel(const T* x, const Table* cosine, const Table* sine, Compute<T> sign, Nest<3> rows, Heads heads,
                  AnyDivider in_row, int64_t count, T* out) {
  using A = Compute<T>;
  const int64_t half = in_row.by * V;
  for (int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x; n < count; n += int64_t(gridDim.x) * threads) {
    const int64_t row = in_row.divide(n), i = (n - row * in_row.by) * V;
    int64_t at[3] = {};
    rows.find(row, at);
    Vector<T, V> a[max_heads], b[max_heads];
    const T* from = x + at[0] + i;
#pragma unroll
    for (int h = 0; h < max_heads; ++h, from += heads.x_stride) {
      if (h >= heads.count) continue;
      a[h] = *reinterpret_cast<const Vector<T, V>*>(from);
      b[h] = *reinterpret_cast<const Vector<T, V>*>(from + half);
    }
    A c[V], s[V];
    load_values<V>(cosine + at[2] + i, c);
    load_values<V>(sine + at[2] + i, s);
    T* to = out + at[1] + i;
#pragma unroll
    for (int h = 0; h < max_heads; ++h, to += heads.out_stride) {
      if (h >= heads.count) continue;
      A y[V], z[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const A sine_here = s[j] * sign, left = A(a[h].v[j]), right = A(b[h].v[j]);
        y[j] = left * c[j] - right * sine_here;
        z[j] = right * c[j] + left * sine_here;
      }
      store_values<V>(to, y);
      store_values<V>(to + half, z);
    }
  }
}

/// Chooses how many heads a thread rotates: at most 4, and a divisor of the size of the innermost dim along which the
/// angles do not change. Divides that size in `rows` by the number chosen.
Heads take_heads(Nest<3>& rows) {
  Heads heads;
  for (int d = rows.rank - 1; d >= 0; --d) {
    if (rows.stride[d][2] != 0) continue;
    for (heads.count = max_heads; rows.size[d] % heads.count != 0;) --heads.count;
    heads.x_stride = rows.stride[d][0], heads.out_stride = rows.stride[d][1];
    rows.size[d] /= heads.count;
    rows.stride[d][0] *= heads.count, rows.stride[d][1] *= heads.count;
    break;
  }
  return heads;
}

template <class T, class Table, int V>
void rotate(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, const Nest<3>& rows,
            const Heads& heads, Tensor& out) {
  const int64_t in_row = x.shape().back() / 2 / V, count = x.numel() / 2 / V / heads.count;
  cuda::launch({"rotary", dim3(cuda::blocks_for(count, threads)), dim3(threads)}, rotary_kernel<T, Table, V>,
               x.data<T>(), cosine.data<Table>(), sine.data<Table>(), Compute<T>(inverse ? -1 : 1), rows, heads,
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
  const Heads heads = take_heads(rows);
  rows.prepare();
  rows.narrow &= x.numel() < max_narrow;
  const auto run = [&]<class T, class Table> {
    constexpr int wide = vector_length<T>;
    bool aligned = half % wide == 0 && is_aligned(x.data<T>(), wide) && is_aligned(out.data<T>(), wide) &&
                   is_aligned(cosine.data<Table>(), wide) && is_aligned(sine.data<Table>(), wide);
    for (int d = 0; d < x.dim() - 1; ++d) aligned &= x.strides()[d] % wide == 0 && out.strides()[d] % wide == 0;
    if (aligned) rotate<T, Table, wide>(x, cosine, sine, inverse, rows, heads, out);
    else rotate<T, Table, 1>(x, cosine, sine, inverse, rows, heads, out);
  };
  for_floats("rotary", x, [&]<class T> {
    if (cosine.dtype() == x.dtype()) return run.template operator()<T, T>();
    if constexpr (sizeof(T) == 2) run.template operator()<T, float>();  // 16-bit values, tables in f32
  });
}

}  // namespace lockstep::on_cuda
