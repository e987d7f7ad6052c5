// Attention of f16 and bf16 on tensor cores, both directions, for heads of up to 128 elements (in whole eights,
// aligned); the algorithm is that of attention.cu and attention_grad.cu, with the same order of every sum in every run.
// Scores, softmax and all sums are f32; weights and their slopes are rounded to 16 bits as factors of the second
// products.
//
// A warp owns 16 rows (of queries, or of keys for grad_k and grad_v), a block of four warps 64. A product of scores is
// in the layout (mma.h) in which its pairs are the left operand of the next product, so that weights never leave
// registers. Bound by tensor cores and by shared memory, which feeds them with two reads for each mma: about half of
// their rate.
#include "tensor/cuda/attention_tile.h"
#include "tensor/cuda/mma.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 128, block_rows = 64;
constexpr int forward_keys = 64, grad_step = 32;  // rows of the other side that a block takes in at a time

struct Lane {
  int g = int(threadIdx.x % warp) / 4, t = int(threadIdx.x % warp) % 4, row = int(threadIdx.x / warp) * 16;
  /// Place in the block's rows, and in the columns of product n, of element e of a c.
  __device__ int row_of(int e) const { return row + g + e / 2 * 8; }
  __device__ int column_of(int n, int e) const { return 8 * n + 2 * t + e % 2; }
};

/// Which score is number e of a lane, counted through its products: for queries by keys, or (turned) keys by queries.
/// Not a lambda: nvcc 13.0 fails on one here.
struct Scores {
  Lane lane;
  int64_t i0, j0;
  bool turned = false;
  __device__ QueryKey operator()(int e) const {
    const int row = lane.row_of(e % 4), column = lane.column_of(e / 4, e % 4);
    return turned ? QueryKey{i0 + column, j0 + row} : QueryKey{i0 + row, j0 + column};
  }
};

/// Two products side by side, rounded, as a left operand.
template <class T> __device__ inline void as_left(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = pack<T>(low[0], low[1]);
  a[1] = pack<T>(low[2], low[3]);
  a[2] = pack<T>(high[0], high[1]);
  a[3] = pack<T>(high[2], high[3]);
}

/// Takes a tile out of shared memory.
template <class Z, int rows> __device__ inline Z take(uint32_t*& words) {
  const Z tile{words};
  words += rows * Z::line;
  return tile;
}

/// score[n] += the warp's 16 rows of `left` times rows 8 n on of `right`, transposed.
template <class T, int depth, int count>
__device__ inline void multiply(const RowTile<depth>& left, const RowTile<depth>& right, float (&score)[count][4]) {
  const int row = threadIdx.x / warp * 16;
#pragma unroll
  for (int k = 0; k < depth; ++k) {
    uint32_t a[4], b[2];
    left.left(row, k, a);
#pragma unroll
    for (int n = 0; n < count; ++n) {
      right.right(8 * n, k, b);
      mma<T>(score[n], a, b);
    }
  }
}

/// sum[d] += weights (16 x 8 count) times columns 8 d on of `values`.
template <class T, int depth, int count>
__device__ inline void accumulate(const float (&weights)[count][4], const PairTile<depth>& values,
                                  float (&sum)[2 * depth][4]) {
#pragma unroll
  for (int k = 0; k < count / 2; ++k) {
    uint32_t a[4], b[2];
    as_left<T>(weights[2 * k], weights[2 * k + 1], a);
#pragma unroll
    for (int d = 0; d < 2 * depth; ++d) {
      values.right(k, 8 * d, b);
      mma<T>(sum[d], a, b);
    }
  }
}

/// Writes the warp's rows: row_of(e) gets sum * factor[e / 2].
template <class T, int depth>
__device__ inline void store_rows(const Heads<T>& out, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t width,
                                  const float (&sum)[2 * depth][4], float low, float high) {
  const Lane lane;
#pragma unroll
  for (int e = 0; e < 4; e += 2) {
    const int64_t row = first + lane.row_of(e);
    if (row >= rows) continue;
    const float factor = e == 0 ? low : high;
    T* const to = out.row(b, h, row);
#pragma unroll
    for (int d = 0; d < 2 * depth; ++d) {
      if (8 * d < width)
        *reinterpret_cast<uint32_t*>(to + lane.column_of(d, 0)) = pack<T>(sum[d][e] * factor, sum[d][e + 1] * factor);
    }
  }
}

template <class T, int depth, bool sparse>
__global__ void __launch_bounds__(threads)
    attention_mma_kernel(AttentionPlan plan, Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> out,
                         float* lse, int64_t tiles) {
  constexpr int count = forward_keys / 8;
  if (!has_tensor_cores) return;
  LOCKSTEP_DYNAMIC_SHARED(uint32_t, shared);
  uint32_t* free = shared;
  RowTile<depth> queries = take<RowTile<depth>, block_rows>(free), keys = take<RowTile<depth>, forward_keys>(free);
  PairTile<depth> values = take<PairTile<depth>, forward_keys / 2>(free), *const no_pairs = nullptr;
  RowTile<depth>* const no_rows = nullptr;
  const Lane lane;
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * block_rows;
  const int64_t h = unit % plan.heads, b = unit / plan.heads, g = h / (plan.heads / plan.groups),
                rows = plan.queries - i0;
  const int64_t end = plan.limit(i0 + (rows < block_rows ? rows : block_rows) - 1);
  load_tiles<threads, block_rows>(q.row(b, h, i0), q.token, rows, plan.width, &queries, no_pairs);

  float sum[2 * depth][4] = {}, top[2] = {-infinity<float>, -infinity<float>}, total[2] = {};
  LOCKSTEP_SHARED(uint64_t, seen, [block_rows]);
  for (int64_t j0 = 0; j0 < end; j0 += forward_keys) {
    if (sparse && !plan.attended(h, i0, block_rows, j0, forward_keys, seen)) continue;
    __syncthreads();  // the last keys and values have been read
    load_tiles<threads, forward_keys>(k.row(b, g, j0), k.token, plan.keys - j0, plan.width, &keys, no_pairs);
    load_tiles<threads, forward_keys>(v.row(b, g, j0), v.token, plan.keys - j0, plan.width, no_rows, &values);
    __syncthreads();
    float score[count][4] = {};
    multiply<T>(queries, keys, score);
    float most[2] = {top[0], top[1]}, shrink[2], base[2];
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t i = i0 + lane.row_of(e), j = j0 + lane.column_of(n, e);
        const bool attended = !sparse || attends(seen, lane.row_of(e), lane.column_of(n, e));
        score[n][e] = i < plan.queries && j < plan.keys && attended
                          ? plan.masked<T>(score[n][e] * float(plan.scale), b, h, i, j)
                          : -infinity<float>;
        most[e / 2] = larger_of(score[n][e], most[e / 2]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = warp_max<4>(most[r]);
      base[r] = most[r] == -infinity<float> ? 0.f : most[r];  // nothing seen so far: exp gives zeros, not NaN
      shrink[r] = exp_of(top[r] - base[r]);
      top[r] = most[r];
      total[r] *= shrink[r];
    }
    const uint32_t kept = plan.kept_of<forward_keys / 2>(b, h, Scores{lane, i0, j0});
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float p = exp_of(score[n][e] - base[e / 2]);
        total[e / 2] += p;
        score[n][e] = p * plan.factor<float>(kept, 4 * n + e);
      }
    }
#pragma unroll
    for (int d = 0; d < 2 * depth; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[d][e] *= shrink[e / 2];
    }
    accumulate<T>(score, values, sum);
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = warp_sum<4>(total[r]);
    const int64_t row = i0 + lane.row_of(2 * r);
    if (lane.t == 0 && row < plan.queries) lse[(b * plan.heads + h) * plan.queries + row] = top[r] + log_of(all);
    factor[r] = all == 0 ? 0.f : 1.f / all;
  }
  store_rows<T, depth>(out, b, h, i0, plan.queries, plan.width, sum, factor[0], factor[1]);
}

template <class T, int depth, bool sparse>
__global__ void __launch_bounds__(threads)
    grad_keys_mma_kernel(GradPlan<T> plan, Heads<T> grad_k, Heads<T> grad_v, int64_t tiles) {
  constexpr int count = grad_step / 8;
  if (!has_tensor_cores) return;
  LOCKSTEP_DYNAMIC_SHARED(uint32_t, shared);
  uint32_t* free = shared;
  RowTile<depth> keys = take<RowTile<depth>, block_rows>(free), values = take<RowTile<depth>, block_rows>(free);
  RowTile<depth> queries = take<RowTile<depth>, grad_step>(free), grads = take<RowTile<depth>, grad_step>(free);
  PairTile<depth> query_pairs = take<PairTile<depth>, grad_step / 2>(free),
                  grad_pairs = take<PairTile<depth>, grad_step / 2>(free), *const no_pairs = nullptr;
  const Lane lane;
  const int64_t unit = blockIdx.x / tiles, j0 = blockIdx.x % tiles * block_rows, g = unit % plan.groups,
                b = unit / plan.groups;
  const int64_t shared_by = plan.heads / plan.groups, width = plan.width;
  load_tiles<threads, block_rows>(plan.k.row(b, g, j0), plan.k.token, plan.keys - j0, width, &keys, no_pairs);
  load_tiles<threads, block_rows>(plan.v.row(b, g, j0), plan.v.token, plan.keys - j0, width, &values, no_pairs);

  LOCKSTEP_SHARED(uint64_t, seen, [grad_step]);
  float sum_k[2 * depth][4] = {}, sum_v[2 * depth][4] = {};
  for (int64_t h = g * shared_by; h < (g + 1) * shared_by; ++h) {
    for (int64_t i0 = plan.first_query(j0) / grad_step * grad_step; i0 < plan.queries; i0 += grad_step) {
      if (sparse && !plan.attended(h, i0, grad_step, j0, block_rows, seen)) continue;
      __syncthreads();  // the last queries have been read
      load_tiles<threads, grad_step>(plan.q.row(b, h, i0), plan.q.token, plan.queries - i0, width, &queries,
                                     &query_pairs);
      load_tiles<threads, grad_step>(plan.grad.row(b, h, i0), plan.grad.token, plan.queries - i0, width, &grads,
                                     &grad_pairs);
      __syncthreads();
      float score[count][4] = {}, slope[count][4] = {};  // of (key, query)
      multiply<T>(keys, queries, score);
      multiply<T>(values, grads, slope);
      const uint32_t kept = plan.template kept_of<grad_step / 2>(b, h, Scores{lane, i0, j0, true});
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float weight, difference;
          plan.differentiate(b, h, i0 + lane.column_of(n, e), j0 + lane.row_of(e),
                             !sparse || attends(seen, lane.column_of(n, e), lane.row_of(e)),
                             plan.template factor<float>(kept, 4 * n + e), score[n][e] * float(plan.scale), slope[n][e],
                             weight, difference);
          score[n][e] = weight;
          slope[n][e] = difference;
        }
      }
      accumulate<T>(score, grad_pairs, sum_v);
      accumulate<T>(slope, query_pairs, sum_k);
    }
  }
  store_rows<T, depth>(grad_k, b, g, j0, plan.keys, width, sum_k, float(plan.scale), float(plan.scale));
  store_rows<T, depth>(grad_v, b, g, j0, plan.keys, width, sum_v, 1.f, 1.f);
}

template <class T, int depth, bool sparse>
__global__ void __launch_bounds__(threads) grad_queries_mma_kernel(GradPlan<T> plan, Heads<T> grad_q, int64_t tiles) {
  constexpr int count = grad_step / 8;
  if (!has_tensor_cores) return;
  LOCKSTEP_DYNAMIC_SHARED(uint32_t, shared);
  uint32_t* free = shared;
  RowTile<depth> queries = take<RowTile<depth>, block_rows>(free), grads = take<RowTile<depth>, block_rows>(free);
  RowTile<depth> keys = take<RowTile<depth>, grad_step>(free), values = take<RowTile<depth>, grad_step>(free);
  PairTile<depth> key_pairs = take<PairTile<depth>, grad_step / 2>(free), *const no_pairs = nullptr;
  const Lane lane;
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * block_rows;
  const int64_t h = unit % plan.heads, b = unit / plan.heads, g = h / (plan.heads / plan.groups),
                rows = plan.queries - i0, width = plan.width;
  const int64_t end = plan.limit(i0 + (rows < block_rows ? rows : block_rows) - 1);
  load_tiles<threads, block_rows>(plan.q.row(b, h, i0), plan.q.token, rows, width, &queries, no_pairs);
  load_tiles<threads, block_rows>(plan.grad.row(b, h, i0), plan.grad.token, rows, width, &grads, no_pairs);

  LOCKSTEP_SHARED(uint64_t, seen, [block_rows]);
  float sum[2 * depth][4] = {};
  for (int64_t j0 = 0; j0 < end; j0 += grad_step) {
    if (sparse && !plan.attended(h, i0, block_rows, j0, grad_step, seen)) continue;
    __syncthreads();  // the last keys have been read
    load_tiles<threads, grad_step>(plan.k.row(b, g, j0), plan.k.token, plan.keys - j0, width, &keys, &key_pairs);
    load_tiles<threads, grad_step>(plan.v.row(b, g, j0), plan.v.token, plan.keys - j0, width, &values, no_pairs);
    __syncthreads();
    float score[count][4] = {}, slope[count][4] = {};  // of (query, key)
    multiply<T>(queries, keys, score);
    multiply<T>(grads, values, slope);
    const uint32_t kept = plan.template kept_of<grad_step / 2>(b, h, Scores{lane, i0, j0});
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float weight, difference;
        plan.differentiate(b, h, i0 + lane.row_of(e), j0 + lane.column_of(n, e),
                           !sparse || attends(seen, lane.row_of(e), lane.column_of(n, e)),
                           plan.template factor<float>(kept, 4 * n + e), score[n][e] * float(plan.scale), slope[n][e],
                           weight, difference);
        slope[n][e] = difference;
      }
    }
    accumulate<T>(slope, key_pairs, sum);
  }
  store_rows<T, depth>(grad_q, b, h, i0, plan.queries, width, sum, float(plan.scale), float(plan.scale));
}

/// Rows in which eight elements may be read at once.
bool in_eights(const Tensor& x) {
  bool fits = is_aligned(static_cast<const uint16_t*>(x.raw_data()), 8) && x.shape()[3] % 8 == 0;
  for (int d = 0; d < 3; ++d) fits &= x.strides()[d] % 8 == 0 || x.shape()[d] <= 1;
  return fits;
}

/// Calls fn.template operator()<T, depth, sparse>() for tensors that fit.
template <class Fn> void with_depth(const AttentionPlan& plan, const Tensor& q, Fn&& fn) {
  dispatch<Half, BFloat16>(q.dtype(), "attention", [&]<class T> {
    with_layout(plan, [&]<bool sparse> {
      if (q.shape()[3] <= 64) fn.template operator()<T, 4, sparse>();
      else fn.template operator()<T, 8, sparse>();
    });
  });
}

int64_t tiles_of(int64_t rows) { return (rows + block_rows - 1) / block_rows; }

template <int depth> size_t bytes_of(int rows, int pairs) {
  return sizeof(uint32_t) * size_t(rows * RowTile<depth>::line + pairs * PairTile<depth>::line);
}

}  // namespace

bool fits_mma(std::initializer_list<const Tensor*> tensors) {
  const Tensor& q = **tensors.begin();
  const int64_t width = q.shape()[3];
  if (size_of(q.dtype()) != 2 || width == 0 || width > 128 || cuda::limits().major < 8) return false;
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return in_eights(*x); });
}

bool attention_mma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                   Tensor& lse) {
  if (!fits_mma({&q, &k, &v, &out})) return false;
  with_depth(plan, q, [&]<class T, int depth, bool sparse> {
    using In = Heads<const T>;
    const int64_t tiles = tiles_of(plan.queries);
    cuda::launch({"attention", dim3(cuda::blocks_of("attention", tiles * plan.heads * plan.batch)), dim3(threads),
                  bytes_of<depth>(block_rows + forward_keys, forward_keys / 2)},
                 attention_mma_kernel<T, depth, sparse>, plan, In(q), In(k), In(v), Heads<T>(out), lse.data<float>(),
                 tiles);
  });
  return true;
}

void attention_grad_mma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& lse, const float* delta, Tensor& grad_q, Tensor& grad_k,
                        Tensor& grad_v) {
  with_depth(plan, q, [&]<class T, int depth, bool sparse> {
    using In = Heads<const T>;
    const GradPlan<T> all{plan, In(grad), In(q), In(k), In(v), lse.data<float>(), delta};
    const int64_t key_tiles = tiles_of(plan.keys), query_tiles = tiles_of(plan.queries);
    cuda::launch({"attention_grad", dim3(cuda::blocks_of("attention_grad", key_tiles * plan.groups * plan.batch)),
                  dim3(threads), bytes_of<depth>(2 * block_rows + 2 * grad_step, grad_step)},
                 grad_keys_mma_kernel<T, depth, sparse>, all, Heads<T>(grad_k), Heads<T>(grad_v), key_tiles);
    cuda::launch({"attention_grad", dim3(cuda::blocks_of("attention_grad", query_tiles * plan.heads * plan.batch)),
                  dim3(threads), bytes_of<depth>(2 * block_rows + 2 * grad_step, grad_step / 2)},
                 grad_queries_mma_kernel<T, depth, sparse>, all, Heads<T>(grad_q), query_tiles);
  });
}

}  // namespace lockstep::on_cuda
