// Attention backward. The weights are computed again, tile by tile, from q, k and the saved log-sum-exp:
//
//   P = exp(q k^T scale + mask - lse)     dP = grad v^T        delta_i = grad_i . out_i
//   dS = P (dP - delta)
//   grad_v += P^T grad     grad_k += dS^T q scale     grad_q += dS k scale
//
// This file has three kernels for f32 and f64. (f16 and bf16 use only the first; attention_grad_mma.cu has the rest.)
// The first kernel computes delta. In the second, each block owns a tile of keys and loops over the queries that attend
// to them, in all heads that share the key head, with grad_k and grad_v in registers. In the third, each block owns a
// tile of queries and loops over the keys, with grad_q in registers. This takes seven products of tiles where five
// would do. But one thread computes each sum in a fixed order, without atomics. Compute bound: 14 B H T S D operations
// (batch, heads, queries, keys, head size; half of that when causal) on the f32 units.
#include "tensor/cuda/attention_tile.h"

namespace lockstep::on_cuda {
namespace {

/// Computes delta, the sum of grad * out over each row, with one warp for each row of (B, H, T). Also sets the counters
/// of the next kernel to 0.
template <class T>
__global__ void __launch_bounds__(128)
    delta_kernel(Heads<const T> grad, Heads<const T> out, int64_t rows, int64_t heads, int64_t queries, int64_t width,
                 Compute<T>* delta, unsigned* counters, int64_t count) {
  const int64_t first = (int64_t(blockIdx.x) * 4 + threadIdx.y) * warp + threadIdx.x;
  for (int64_t n = first; n < count; n += int64_t(gridDim.x) * 128) counters[n] = 0;
  for (int64_t n = int64_t(blockIdx.x) * 4 + threadIdx.y; n < rows; n += int64_t(gridDim.x) * 4) {
    const int64_t i = n % queries, h = n / queries % heads, b = n / queries / heads;
    const T *const g = grad.row(b, h, i), *const o = out.row(b, h, i);
    Compute<T> sum = 0;
    for (int64_t d = threadIdx.x; d < width; d += warp) sum += load(g + d) * load(o + d);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) delta[n] = sum;
  }
}

/// sum += a b^T for a tile of rows_a rows at row_a and a tile of rows_b rows at row_b, over all `width` columns.
template <class T, class A>
__device__ inline void multiply(const Heads<const T>& a, const T* row_a, int64_t rows_a, A scale_a,
                                const Heads<const T>& b, const T* row_b, int64_t rows_b, A scale_b, int64_t width,
                                A* tile_a, A* tile_b, A (&sum)[4][Tile<A>::vec]) {
  for (int64_t d = 0; d < width; d += Tile<A>::size) {
    __syncthreads();  // the previous contents of the tiles have been read
    load_tile(row_a, a.token, a.wide, rows_a, d, width, scale_a, tile_a);
    load_tile(row_b, b.token, b.wide, rows_b, d, width, scale_b, tile_b);
    __syncthreads();
    dot_rows(tile_a, tile_b, sum);
  }
}

/// From column `slice` on, the rows are divided into chunks of Tile::size columns: sum[c] += weights times chunk c. If
/// `there` is true, there is a single chunk, and `tile` already holds it.
template <int chunks, class T, class A>
__device__ inline void accumulate(const A* weights, const Heads<const T>& x, const T* row, int64_t rows, A scale,
                                  int64_t slice, int64_t width, bool there, A* tile,
                                  A (&sum)[chunks][4][Tile<A>::vec]) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    if (slice + c * Tile<A>::size >= width) break;
    __syncthreads();  // the weights are stored and the tile has been read
    if (!there) {
      load_tile(row, x.token, x.wide, rows, slice + c * Tile<A>::size, width, scale, tile);
      __syncthreads();
    }
    times_rows(weights, tile, sum[c]);
  }
}

/// Computes grad_k and grad_v. Each block owns a tile of keys.
template <class T, int chunks, bool sparse>
__global__ void __launch_bounds__(Tile<Compute<T>>::threads)
    grad_keys_kernel(GradPlan<T> plan, Heads<T> grad_k, Heads<T> grad_v, int64_t tiles) {
  using A = Compute<T>;
  using Z = Tile<A>;
  LOCKSTEP_DYNAMIC_SHARED(A, tile_a);
  LOCKSTEP_SHARED(uint64_t, visible, [Z::size]);
  A *const tile_b = tile_a + Z::size * Z::line, *const weights = tile_b + Z::size * Z::line;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t unit = blockIdx.x / tiles, j0 = blockIdx.x % tiles * Z::size;
  const int64_t g = unit % plan.groups, b = unit / plan.groups % plan.batch,
                slice = unit / plan.groups / plan.batch * chunks * Z::size;
  const int64_t shared = plan.heads / plan.groups, keys = plan.keys - j0, width = plan.width;
  const A scale = A(plan.scale);
  const bool single = width <= Z::size;
  const int64_t last = plan.end_query(j0 + (keys < Z::size ? keys : Z::size) - 1);

  A sum_k[chunks][4][Z::vec] = {}, sum_v[chunks][4][Z::vec] = {};
  for (int64_t h = g * shared; h < (g + 1) * shared; ++h) {
    for (int64_t i0 = plan.first_query(j0) / Z::size * Z::size; i0 < last; i0 += Z::size) {
      if (sparse && !plan.attended(h, i0, Z::size, j0, Z::size, visible)) continue;
      const int64_t rows = plan.queries - i0;
      A score[4][Z::vec] = {}, slope[4][Z::vec] = {};  // indexed by (key, query)
      multiply(plan.k, plan.k.row(b, g, j0), keys, A(1), plan.q, plan.q.row(b, h, i0), rows, scale, width, tile_a,
               tile_b, score);
      multiply(plan.v, plan.v.row(b, g, j0), keys, A(1), plan.grad, plan.grad.row(b, h, i0), rows, A(1), width, tile_a,
               tile_b, slope);
      const uint32_t kept = plan.template kept_of<4 * Z::vec>(b, h, [&](int e) {
        return QueryKey{i0 + tx + e % Z::vec * 16, j0 + 4 * ty + e / Z::vec};
      });
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < Z::vec; ++j) {
          A weight, difference;
          const int64_t row = plan.row(b, h, i0 + tx + 16 * j);
          plan.differentiate(b, h, i0 + tx + 16 * j, j0 + 4 * ty + i,
                             !sparse || attends(visible, tx + 16 * j, 4 * ty + i),
                             plan.template factor<A>(kept, i * Z::vec + j), plan.lse + row, plan.delta + row,
                             score[i][j], slope[i][j], weight, difference);
          put(weights, i, j, weight);
          slope[i][j] = difference;
        }
      }
      accumulate<chunks>(weights, plan.grad, plan.grad.row(b, h, i0), rows, A(1), slice, width, single, tile_b, sum_v);
      __syncthreads();  // P has been read
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < Z::vec; ++j) put(weights, i, j, slope[i][j]);
      }
      accumulate<chunks>(weights, plan.q, plan.q.row(b, h, i0), rows, scale, slice, width, false, tile_b, sum_k);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = j0 + 4 * ty + i;
    if (row >= plan.keys) continue;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      store_part(grad_k.row(b, g, row), grad_k.wide, slice + c * Z::size + Z::vec * tx, width, sum_k[c][i], A(1));
      store_part(grad_v.row(b, g, row), grad_v.wide, slice + c * Z::size + Z::vec * tx, width, sum_v[c][i], A(1));
    }
  }
}

/// Computes grad_q. Each block owns a tile of queries.
template <class T, int chunks, bool sparse>
__global__ void __launch_bounds__(Tile<Compute<T>>::threads)
    grad_queries_kernel(GradPlan<T> plan, Heads<T> grad_q, int64_t tiles) {
  using A = Compute<T>;
  using Z = Tile<A>;
  LOCKSTEP_DYNAMIC_SHARED(A, tile_a);
  LOCKSTEP_SHARED(uint64_t, visible, [Z::size]);
  A *const tile_b = tile_a + Z::size * Z::line, *const weights = tile_b + Z::size * Z::line;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * Z::size;
  const int64_t h = unit % plan.heads, b = unit / plan.heads % plan.batch,
                slice = unit / plan.heads / plan.batch * chunks * Z::size;
  const int64_t g = h / (plan.heads / plan.groups), rows = plan.queries - i0, width = plan.width;
  const int64_t last = i0 + (rows < Z::size ? rows : Z::size) - 1, end = plan.limit(last);

  A sum[chunks][4][Z::vec] = {};
  for (int64_t j0 = plan.first_key(i0) / Z::size * Z::size; j0 < end; j0 += Z::size) {
    if (sparse && !plan.attended(h, i0, Z::size, j0, Z::size, visible)) continue;
    const int64_t keys = plan.keys - j0;
    A score[4][Z::vec] = {}, slope[4][Z::vec] = {};  // indexed by (query, key)
    multiply(plan.grad, plan.grad.row(b, h, i0), rows, A(1), plan.v, plan.v.row(b, g, j0), keys, A(1), width, tile_a,
             tile_b, slope);
    multiply(plan.q, plan.q.row(b, h, i0), rows, A(plan.scale), plan.k, plan.k.row(b, g, j0), keys, A(1), width, tile_a,
             tile_b, score);
    const uint32_t kept = plan.template kept_of<4 * Z::vec>(b, h, [&](int e) {
      return QueryKey{i0 + 4 * ty + e / Z::vec, j0 + tx + e % Z::vec * 16};
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < Z::vec; ++j) {
        A weight, difference;
        const int64_t row = plan.row(b, h, i0 + 4 * ty + i);
        plan.differentiate(b, h, i0 + 4 * ty + i, j0 + tx + 16 * j,
                           !sparse || attends(visible, 4 * ty + i, tx + 16 * j),
                           plan.template factor<A>(kept, i * Z::vec + j), plan.lse + row, plan.delta + row, score[i][j],
                           slope[i][j], weight, difference);
        put(weights, i, j, difference);
      }
    }
    accumulate<chunks>(weights, plan.k, plan.k.row(b, g, j0), keys, A(1), slice, width, width <= Z::size, tile_b, sum);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = i0 + 4 * ty + i;
    if (row >= plan.queries) continue;
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      store_part(grad_q.row(b, h, row), grad_q.wide, slice + c * Z::size + Z::vec * tx, width, sum[c][i],
                 A(plan.scale));
  }
}

}  // namespace

void attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& out, const Tensor& lse, const AttentionArgs& args, Tensor& grad_q, Tensor& grad_k,
                    Tensor& grad_v) {
  if (size_of(q.dtype()) == 2 && !fits_mma({&q, &k, &v, &grad, &grad_q, &grad_k, &grad_v})) {
    const auto like = [](const Tensor& x) { return empty(x.shape(), {f32, x.device()}); };
    Tensor wide_q = like(grad_q), wide_k = like(grad_k), wide_v = like(grad_v);
    attention_grad(grad.to(f32), q.to(f32), k.to(f32), v.to(f32), as_f32(mask), out.to(f32), lse, args, wide_q, wide_k,
                   wide_v);
    copy(wide_q, grad_q), copy(wide_k, grad_k), copy(wide_v, grad_v);
    return;
  }
  for_floats("attention_grad", q, [&]<class T> {
    using A = Compute<T>;
    using Z = Tile<A>;
    using In = Heads<const T>;
    const int64_t rows = lse.numel();
    const AttentionPlan sizes(q, k, mask, args);
    const int64_t count = sizeof(T) == 2 ? counters_of_grad(sizes) : 0;
    const cuda::Scratch delta(size_t(rows) * sizeof(A)), counters(size_t(count) * sizeof(unsigned));
    const GradPlan<T> plan{sizes, In(grad), In(q), In(k), In(v), lse.data<A>(), delta.as<A>()};
    cuda::launch({"attention_grad", dim3(cuda::blocks_for(std::max<int64_t>(rows, 1), 4)), dim3(warp, 4)},
                 delta_kernel<T>, In(grad), In(out), rows, plan.heads, plan.queries, plan.width, delta.as<A>(),
                 counters.as<unsigned>(), count);
    if constexpr (sizeof(T) == 2) {
      attention_grad_mma(plan, grad, q, k, v, lse, delta.as<float>(), counters.as<unsigned>(), grad_q, grad_k, grad_v);
    } else {
      with_chunks<A, sizeof(A) == 8 ? 1 : 2>(plan.width, [&]<int chunks>(int64_t slices) {
        with_layout(plan, [&]<bool sparse> {
          const int64_t key_tiles = (plan.keys + Z::size - 1) / Z::size,
                        query_tiles = (plan.queries + Z::size - 1) / Z::size;
          cuda::launch(
              {"attention_grad", dim3(cuda::blocks_of("attention_grad", key_tiles * plan.groups * plan.batch * slices)),
               dim3(Z::threads), 3 * Z::bytes},
              grad_keys_kernel<T, chunks, sparse>, plan, Heads<T>(grad_k), Heads<T>(grad_v), key_tiles);
          cuda::launch({"attention_grad",
                        dim3(cuda::blocks_of("attention_grad", query_tiles * plan.heads * plan.batch * slices)),
                        dim3(Z::threads), 3 * Z::bytes},
                       grad_queries_kernel<T, chunks, sparse>, plan, Heads<T>(grad_q), query_tiles);
        });
      });
    }
  });
}

}  // namespace lockstep::on_cuda
