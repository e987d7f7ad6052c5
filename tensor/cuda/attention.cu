// Attention forward in tiles (Dao et al., FlashAttention, 2022): the T x S matrix of scores is never materialised.
//
//            keys ->  tile 0   tile 1   tile 2
//   query tile      +--------+--------+--------+     A block owns a tile of queries and walks along their key tiles.
//   (a block)       |  ....  |  ....  |        |     Each row keeps its maximum m, the sum l of exp(score - m) and the
//                   |  ....  |  ....  | causal:|     unnormalised output in registers. If m grows, both l and the
//                   |  ....  |  ....  | skipped|     output are scaled by exp(old m - new m). At the end out /= l, and
//                   +--------+--------+--------+     lse = m + log l is saved for the backward pass.
//
// Compute bound: 4 B H T S D operations (half of that when causal) on the f32 units, fed from shared memory by 16-byte
// reads, 8 reads for 64 multiplications of a thread. Three tiles take 52 KB, so two blocks of 256 threads fit on a
// multiprocessor. If the head is wider than a block's output (256; f64: 64), it is split into slices, and each slice
// computes the scores again.
#include "tensor/cuda/attention_tile.h"

namespace lockstep::on_cuda {
namespace {

template <class T, int chunks, bool sparse>
__global__ void __launch_bounds__(Tile<Compute<T>>::threads)
    attention_kernel(AttentionPlan plan, Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> out,
                     Compute<T>* lse, int64_t tiles) {
  using A = Compute<T>;
  using Z = Tile<A>;
  LOCKSTEP_DYNAMIC_SHARED(A, queries);
  LOCKSTEP_SHARED(uint64_t, visible, [Z::size]);
  A *const keys = queries + Z::size * Z::line, *const weights =
                                                   keys + Z::size * Z::line;  // the values reuse the tile of the keys
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  // Blocks of the last queries start first: with a causal mask they have the most work.
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * Z::size;
  const int64_t h = unit % plan.heads, b = unit / plan.heads % plan.batch,
                slice = unit / plan.heads / plan.batch * chunks * Z::size;
  const int64_t g = h / (plan.heads / plan.groups), rows = plan.queries - i0;
  const int64_t last = i0 + (rows < Z::size ? rows : Z::size) - 1, end = plan.limit(last);

  A sum[chunks][4][Z::vec] = {}, top[4], total[4] = {};
  for (A& m : top) m = -infinity<A>;
  bool packed = false;  // true once the queries are in shared memory
  for (int64_t j0 = plan.first_key(i0) / Z::size * Z::size; j0 < end; j0 += Z::size) {
    if (sparse && !plan.attended(h, i0, Z::size, j0, Z::size, visible)) continue;
    A score[4][Z::vec] = {};
    for (int64_t d = 0; d < plan.width; d += Z::size) {
      __syncthreads();  // the previous values and queries have been read
      if (!packed || plan.width > Z::size)
        load_tile(q.row(b, h, i0), q.token, q.wide, rows, d, plan.width, A(plan.scale), queries);
      load_tile(k.row(b, g, j0), k.token, k.wide, plan.keys - j0, d, plan.width, A(1), keys);
      __syncthreads();
      dot_rows(queries, keys, score);
    }
    packed = true;
    const uint32_t kept = plan.kept_of<4 * Z::vec>(b, h, [&](int e) {
      return QueryKey{i0 + 4 * ty + e / Z::vec, j0 + tx + e % Z::vec * 16};
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = i0 + 4 * ty + i;
      A highest = top[i];
#pragma unroll
      for (int j = 0; j < Z::vec; ++j) {
        const int64_t key = j0 + tx + 16 * j;
        score[i][j] = row < plan.queries && key < plan.keys && (!sparse || attends(visible, 4 * ty + i, tx + 16 * j))
                          ? plan.masked<T>(score[i][j], b, h, row, key)
                          : -infinity<A>;
        highest = larger_of(score[i][j], highest);
      }
      highest = warp_max<16>(highest);
      const A base = highest == -infinity<A> ? A(0) : highest;  // all keys masked so far: exp() must give 0, not NaN
      const A shrink = exp_of(top[i] - base);
      top[i] = highest;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < Z::vec; ++j) {
        const A p = exp_of(score[i][j] - base);
        total[i] += p;
        put(weights, i, j, p * plan.factor<A>(kept, i * Z::vec + j));
      }
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
#pragma unroll
        for (int f = 0; f < Z::vec; ++f) sum[c][i][f] *= shrink;
      }
    }
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      if (slice + c * Z::size >= plan.width) break;
      __syncthreads();  // the weights are stored and the keys have been read
      load_tile(v.row(b, g, j0), v.token, v.wide, plan.keys - j0, slice + c * Z::size, plan.width, A(1), keys);
      __syncthreads();
      times_rows(weights, keys, sum[c]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const A all = warp_sum<16>(total[i]);
    const int64_t row = i0 + 4 * ty + i;
    if (row >= plan.queries) continue;
    if (tx == 0 && slice == 0) lse[(b * plan.heads + h) * plan.queries + row] = top[i] + log_of(all);
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      store_part(out.row(b, h, row), out.wide, slice + c * Z::size + Z::vec * tx, plan.width, sum[c][i],
                 all == 0 ? A(0) : A(1) / all);
  }
}

}  // namespace

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionArgs& args,
               Tensor& out, Tensor& lse) {
  const AttentionPlan plan(q, k, mask, args);
  if (attention_mma(plan, q, k, v, out, lse)) return;
  if (size_of(q.dtype()) == 2) {
    Tensor wide = empty(out.shape(), {f32, out.device()});
    attention(q.to(f32), k.to(f32), v.to(f32), as_f32(mask), args, wide, lse);
    return copy(wide, out);
  }
  dispatch<float, double>(q.dtype(), "attention", [&]<class T> {
    using In = Heads<const T>;
    with_chunks<T, sizeof(T) == 8 ? 1 : 4>(plan.width, [&]<int chunks>(int64_t slices) {
      with_layout(plan, [&]<bool sparse> {
        const int64_t tiles = (plan.queries + Tile<T>::size - 1) / Tile<T>::size;
        cuda::launch({"attention", dim3(cuda::blocks_of("attention", tiles * plan.heads * plan.batch * slices)),
                      dim3(Tile<T>::threads), 3 * Tile<T>::bytes},
                     attention_kernel<T, chunks, sparse>, plan, In(q), In(k), In(v), Heads<T>(out), lse.data<T>(),
                     tiles);
      });
    });
  });
}

}  // namespace lockstep::on_cuda
