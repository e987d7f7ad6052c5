// Attention forward of f16 and bf16 on Hopper's tensor cores, for heads of 64 and 128 elements without windows,
// dropout, masks and layouts. The algorithm is that of attention.cu, pipelined as in FlashAttention-3 (Shah et al.,
// 2024) but without its producer warps.
//
// A block owns 64 queries for each of its two or three warpgroups and walks along the keys, 128 at a time. In each
// step the tensor cores compute the scores of one tile and the weighted sum of the tile before, whose weights are in
// registers. Once the scores are ready, the warps turn them into weights while the sum is still running:
//
//   tensor cores   | scores 1 | sums 0        | scores 2 | sums 1        |
//   warps          |          | softmax 1     |          | softmax 2     |
//
// Keys and values have two buffers each in shared memory, which TMA fills one step ahead. Bound by tensor cores: for
// heads of D elements, they do 2 D multiply-adds for each exponential.
#include "base/environment.h"
#include "tensor/cuda/attention_wgmma.h"

namespace lockstep::on_cuda {
namespace {

/// Tile sizes and shared memory of a block.
template <int depth> struct ForwardTiles {
  static constexpr int groups = depth == 4 ? 3 : 2, threads = groups * warpgroup, queries = groups * 64, keys = 128;
  using Queries = SwizzledTile<queries, depth>;
  using Keys = SwizzledTile<keys, depth>;
  static constexpr size_t bytes = max_before_pattern + Queries::bytes + 4 * Keys::bytes;
};

/// Online softmax of a lane's two rows while the block walks along the keys.
struct Softmax {
  float top[2] = {-infinity<float>, -infinity<float>};  // maximum of the scores, before scaling
  float total[2] = {};                                  // sum of this lane's weights

  /// Replaces the scores of a tile by weights, relative to the maximum so far. If that has grown, sums of earlier
  /// tiles are too large: the caller must multiply them by `shrink`. `factor` is scale / ln 2 and positive.
  template <int count> __device__ void update(float (&score)[count], float factor, float (&shrink)[2]) {
    float highest[2] = {top[0], top[1]}, base[2];
#pragma unroll
    for (int e = 0; e < count; ++e) highest[e / 2 % 2] = larger_of(score[e], highest[e / 2 % 2]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      highest[r] = warp_max<4>(highest[r]);
      base[r] = highest[r] == -infinity<float> ? 0.f : highest[r] * factor;  // all keys masked so far: 0, not NaN
      // Exactly 1 if the maximum has not changed: the exponential could differ from 1, because the compiler may fuse
      // product and difference. So a tile leaves a query's results unchanged if the query attends to none of its keys.
      shrink[r] = top[r] == highest[r] ? 1.f : fast_exp2(top[r] * factor - base[r]);
      top[r] = highest[r];
      total[r] *= shrink[r];
    }
#pragma unroll
    for (int e = 0; e < count; ++e) {
      score[e] = fast_exp2(score[e] * factor - base[e / 2 % 2]);
      total[e / 2 % 2] += score[e];
    }
  }
};

template <class T, int depth>
__global__ void __launch_bounds__(ForwardTiles<depth>::threads, 1)
    attention_wgmma_kernel(AttentionPlan plan, const __grid_constant__ TileMap q, const __grid_constant__ TileMap k,
                           const __grid_constant__ TileMap v, Heads<T> out, float* lse, int64_t tiles) {
  using Z = ForwardTiles<depth>;
  using Queries = typename Z::Queries;
  using Keys = typename Z::Keys;
  if (!has_hopper) return;
  LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
  LOCKSTEP_SHARED(uint64_t, barrier, [1]);
  unsigned char* free = first_pattern(shared);
  const auto queries = take<Queries>(free);
  const Keys all_keys = take<Keys>(free), all_values{all_keys.data + 2 * Keys::bytes};
  const Lane lane;
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * Z::queries;
  const int64_t h = unit % plan.heads, b = unit / plan.heads, g = h / (plan.heads / plan.groups),
                rows = plan.queries - i0;
  const int64_t end = plan.limit(i0 + (rows < Z::queries ? rows : Z::queries) - 1);
  const int steps = int((end + Z::keys - 1) / Z::keys);
  const float factor = float(plan.scale * 1.4426950408889634);  // 1 / ln 2

  // The tiles of step n use buffer n % 2.
  const auto place = [](const Keys& first, int step) { return Keys{first.data + step % 2 * Keys::bytes}; };
  const Arrivals arrivals(barrier);
  // Starts to load the tiles for step `step`: its keys and the values of the step before. Step 0 loads the queries
  // instead of values, and the last call loads no keys.
  const auto fetch = [&](int step) {
    if (threadIdx.x != 0) return;
    const bool first = step == 0, last = step == steps;
    arrivals.expect((first ? Queries::bytes : Keys::bytes) + (last ? 0 : Keys::bytes));
    if (first) queries.fill(arrivals, q, b, h, i0);
    else place(all_values, step - 1).fill(arrivals, v, b, g, int64_t(step - 1) * Z::keys);
    if (!last) place(all_keys, step).fill(arrivals, k, b, g, int64_t(step) * Z::keys);
  };
  // Waits until the tiles of fetch(step) have arrived and all threads have finished with the other buffers.
  const auto arrive = [&](int step) {
    arrivals.wait(step);
    __syncthreads();
  };
  Softmax softmax;
  float score[Z::keys / 2], sum[8 * depth], shrink[2];
  uint32_t weights[Z::keys / 16][4];
  const auto begin_scores = [&](int step) {
#pragma unroll
    for (int n = 0; n < depth; ++n)
      multiply_async<T, false, false>(score, queries.along(int(threadIdx.x) / warpgroup * 64, n),
                                      place(all_keys, step).along(0, n), n > 0);
    commit();
  };
  const auto begin_sums = [&](int step) {
#pragma unroll
    for (int n = 0; n < Z::keys / 16; ++n)
      multiply_async<T, true>(sum, weights[n], place(all_values, step).down(n), true);
    commit();
  };
  const auto hide = [&](int step) {  // masks the keys that a query does not see
    const int64_t j0 = int64_t(step) * Z::keys;
    if (j0 + Z::keys <= plan.limit(i0 + lane.row)) return;  // the same for all lanes of a warp
    int visible[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t limit = plan.limit(i0 + lane.row_of(2 * r));
      visible[r] = limit < j0 ? 0 : int(limit - j0);
    }
#pragma unroll
    for (int e = 0; e < Z::keys / 2; ++e)
      if (lane.column_of(e / 4, e % 4) >= visible[e / 2 % 2]) score[e] = -infinity<float>;
  };

#pragma unroll
  for (int d = 0; d < 8 * depth; ++d) sum[d] = 0;
  if (steps > 0) {
    fetch(0);
    arrive(0);
    fetch(1);
    fence(score);
    begin_scores(0);
    wait<0>(score);
    hide(0);
    softmax.update(score, factor, shrink);
    as_left<T>(score, weights);
    for (int step = 1; step < steps; ++step) {
      arrive(step);
      fetch(step + 1);
      fence(score, sum, weights);
      begin_scores(step);
      begin_sums(step - 1);
      wait<1>(score);
      hide(step);
      softmax.update(score, factor, shrink);
      wait<0>(sum, weights);
#pragma unroll
      for (int d = 0; d < 8 * depth; ++d) sum[d] *= shrink[d / 2 % 2];
      as_left<T>(score, weights);
    }
    arrive(steps);
    fence(sum, weights);
    begin_sums(steps - 1);
    wait<0>(sum, weights);
  }
  float share[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = warp_sum<4>(softmax.total[r]);
    const int64_t row = i0 + lane.row_of(2 * r);
    if (lane.t == 0 && row < plan.queries)
      lse[(b * plan.heads + h) * plan.queries + row] = softmax.top[r] * float(plan.scale) + log_of(all);
    share[r] = all == 0 ? 0.f : 1.f / all;
  }
  store_rows(out, b, h, i0 + lane.row_of(0), plan.queries, 0, plan.width, in_fours(sum), share[0], share[1]);
}

}  // namespace

bool fits_wgmma(const AttentionPlan& plan, std::initializer_list<const Tensor*> tensors) {
#if defined(LOCKSTEP_CODE_FOR_SM_90A) || !defined(__CUDACC__)
  const bool has = cuda::limits().major == 9 && cuda::limits().minor == 0;
#else
  const bool has = false;
#endif
  return has && (plan.width == 64 || plan.width == 128) && plan.kind == Mask::none && plan.threshold == 0 &&
         plan.layout.block == 0 && plan.window == 0 && plan.scale > 0 &&
         environment("LOCKSTEP_WGMMA").value_or("1") != "0" &&
         std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return fits_tiles(*x); });
}

void attention_wgmma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                     Tensor& lse) {
  with_full_depth(q, [&]<class T, int depth> {
    using Z = ForwardTiles<depth>;
    const int64_t tiles = tiles_of(plan.queries, Z::queries);
    cuda::launch(
        {"attention", dim3(cuda::blocks_of("attention", tiles * plan.heads * plan.batch)), dim3(Z::threads), Z::bytes},
        attention_wgmma_kernel<T, depth>, plan, map_tiles(q, Z::queries), map_tiles(k, Z::keys), map_tiles(v, Z::keys),
        Heads<T>(out), lse.data<float>(), tiles);
  });
}

}  // namespace lockstep::on_cuda
