// Attention backward of f16 and bf16 on Hopper's tensor cores, for heads of 64 and 128 elements without dropout, masks,
// windows and layouts. The algorithm is that of attention_grad_mma.cu, with products by warpgroups.
//
// Two warpgroups own 64 keys each. Scores and slopes (gradients of the scores) have keys as rows. Rounded to 16 bits,
// they stay in registers and are the left operands of the products for grad_v and grad_k. For grad_q the slopes go
// through shared memory. This timeline of a step shows which work of the warps overlaps with which products:
//
//   tensor cores   | scores | slopes  | grad_v                        | grad_k                         | grad_q |
//   warps                   | weights | differences, to shared memory | barrier, then this tile's turn |
//
// A step takes 128 queries for heads of 64 elements, and 64 queries for heads of 128. In both cases a thread holds the
// same number of elements of grad_q.
#include "tensor/cuda/attention_wgmma.h"
#include "tensor/cuda/semaphore.h"

namespace lockstep::on_cuda {
namespace {

/// Tile sizes and shared memory of a block.
template <int depth> struct BackwardTiles {
  static constexpr int threads = 2 * warpgroup, keys = 128, queries = depth == 4 ? 128 : 64, warps = threads / warp;
  using Keys = SwizzledTile<keys, depth>;
  using Queries = SwizzledTile<queries, depth>;
  using Slopes = SwizzledTile<keys, queries / 16>;
  static constexpr size_t bytes = max_before_pattern + 2 * Keys::bytes + 4 * Queries::bytes + Slopes::bytes;
};

/// The inputs: tensors that TMA loads, and for each query the log-sum-exp of its scores and delta (attention_grad.cu).
struct GradTiles {
  TileMap grad, q, k, v;
  const float *lse, *delta;
};
/// Memory that all blocks of a backward pass share; see attention_grad_mma.cu.
struct SharedByBlocks {
  unsigned *ticket, *semaphores;
  float4* sums;
  int key_tiles;
  int64_t query_tiles;
};

template <class T, int depth>
__global__ void __launch_bounds__(BackwardTiles<depth>::threads, 1)
    attention_grad_wgmma_kernel(AttentionPlan plan, const __grid_constant__ GradTiles in, Heads<T> grad_q,
                                Heads<T> grad_k, Heads<T> grad_v, SharedByBlocks all) {
  using Z = BackwardTiles<depth>;
  using Keys = typename Z::Keys;
  using Queries = typename Z::Queries;
  constexpr int count = Z::queries / 2;  // scores that a thread holds
  if (!has_hopper) return;
  LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
  LOCKSTEP_SHARED(float, row_sums, [2][2][Z::queries]);  // [stage][0: lse, 1: delta][query]
  LOCKSTEP_SHARED(uint64_t, barrier, [1]);
  unsigned char* free = first_pattern(shared);
  const auto keys = take<Keys>(free), values = take<Keys>(free);
  const auto slopes = take<typename Z::Slopes>(free);  // stored as keys by queries
  const Queries all_queries = take<Queries>(free), all_grads{all_queries.data + Queries::bytes};
  const Lane lane;
  const int group = int(threadIdx.x) / warpgroup, place = int(threadIdx.x) / warp;
  const int ticket = int(take_ticket(all.ticket)), unit = ticket / all.key_tiles,
            tile = all.key_tiles - 1 - ticket % all.key_tiles, j0 = tile * Z::keys,
            first = int(plan.first_query(j0)) / Z::queries * Z::queries;
  const float scale = float(plan.scale), factor = float(plan.scale * 1.4426950408889634);  // 1 / ln 2

  // A step is one tile of queries of one head. The heads of all sequences of the batch have consecutive numbers. There
  // are two stages: shared-memory buffers, each for a tile of queries and the tile of their gradients.
  const int groups = int(plan.groups), heads = int(plan.heads), shared_by = heads / groups,
            of_head = (int(plan.queries) - first + Z::queries - 1) / Z::queries, steps = of_head * shared_by;
  const auto head_of = [&](int step) { return unit * shared_by + step / of_head; };
  const auto query_of = [&](int step) { return first + step % of_head * Z::queries; };
  const auto stage_of = [](const Queries& tiles, int step) {
    return Queries{tiles.data + step % 2 * 2 * Queries::bytes};
  };
  const Arrivals arrivals(barrier);
  const auto fetch = [&](int step) {
    if (step >= steps) return;
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(step));  // else the compiler keeps these values in registers until the next step
#endif
    const int head = head_of(step), i0 = query_of(step), rows = int(plan.queries) - i0;
    if (threadIdx.x == 0) {
      arrivals.expect(2 * Queries::bytes + (step == 0 ? 2 * Keys::bytes : 0));
      if (step == 0) {
        keys.fill(arrivals, in.k, unit / groups, unit % groups, j0);
        values.fill(arrivals, in.v, unit / groups, unit % groups, j0);
      }
      stage_of(all_queries, step).fill(arrivals, in.q, head / heads, head % heads, i0);
      stage_of(all_grads, step).fill(arrivals, in.grad, head / heads, head % heads, i0);
    }
    const int number = int(threadIdx.x) / Z::queries, row = int(threadIdx.x) % Z::queries;
    if (number < 2)
      copy_async<4>(&row_sums[step % 2][number][row],
                    (number == 0 ? in.lse : in.delta) + head * plan.queries + i0 + row, row < rows);
  };
  fetch(0);

  int hidden_from[2];  // for each of the lane's two keys, the first query that sees it
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int j = j0 + lane.row_of(2 * r);
    hidden_from[r] = j < plan.keys ? int(plan.first_query(j)) : first + of_head * Z::queries;
  }

  float sum_k[8 * depth], sum_v[8 * depth];
#pragma unroll
  for (int d = 0; d < 8 * depth; ++d) sum_k[d] = sum_v[d] = 0;
  for (int step = 0; step < steps; ++step) {
    const Queries queries = stage_of(all_queries, step), grads = stage_of(all_grads, step);
    const auto& saved = row_sums[step % 2];
    arrivals.wait(step);
    wait_for_copies();  // the row_sums of this stage
    __syncthreads();    // this stage has arrived; the other stage and the slopes have been read
    fetch(step + 1);

    float score[count], slope[count];  // indexed by (key, query)
    uint32_t weights[count / 8][4], differences[count / 8][4];
    fence(score, slope);
#pragma unroll
    for (int n = 0; n < depth; ++n)
      multiply_async<T, false, false>(score, keys.along(group * 64, n), queries.along(0, n), n > 0);
    commit();
#pragma unroll
    for (int n = 0; n < depth; ++n)
      multiply_async<T, false, false>(slope, values.along(group * 64, n), grads.along(0, n), n > 0);
    commit();
    wait<1>(score);
    const int i0 = query_of(step), hidden[2] = {hidden_from[0] - i0, hidden_from[1] - i0};
#pragma unroll
    for (int e = 0; e < count; ++e) {
      const int column = lane.column_of(e / 4, e % 4);
      const float lse = saved[0][column];
      // lse is -infinity if the query attends to no key: its weights are then 0
      const float base = lse == -infinity<float> ? infinity<float> : lse * 1.44269504f;
      score[e] = column >= hidden[e / 2 % 2] ? fast_exp2(score[e] * factor - base) : 0.f;
    }
    as_left<T>(score, weights);
    fence(sum_v, weights);
#pragma unroll
    for (int n = 0; n < count / 8; ++n) multiply_async<T, true>(sum_v, weights[n], grads.down(n), true);
    commit();
    wait<1>(slope);
#pragma unroll
    for (int e = 0; e < count; ++e) slope[e] = score[e] * (slope[e] - saved[1][lane.column_of(e / 4, e % 4)]);
    as_left<T>(slope, differences);
#pragma unroll
    for (int n = 0; n < count / 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_shared(reinterpret_cast<uint32_t*>(slopes.chunk(lane.row_of(2 * r), n)) + lane.t,
                     differences[n / 2][n % 2 * 2 + r]);
    }
    show_to_async_proxy();
    fence(sum_k, differences);
#pragma unroll
    for (int n = 0; n < count / 8; ++n) multiply_async<T, true>(sum_k, differences[n], queries.down(n), true);
    commit();
    __syncthreads();  // the slopes are stored

    // A warpgroup computes half of grad_q: half of the queries for heads of 64 elements, else half of the columns.
    const int row = depth == 4 ? group * 64 : 0, column = depth == 4 ? 0 : group * 64;
    float sum[32];
    fence(sum);
#pragma unroll
    for (int n = 0; n < Z::keys / 16; ++n)
      multiply_async<T, true, true>(sum, slopes.down(n, row), keys.down(n, column), n > 0);
    commit();
    wait<0>(sum, sum_k, sum_v, weights, differences);
    const int head = head_of(step),
              end = int(plan.limit((i0 + Z::queries < plan.queries ? i0 + Z::queries : plan.queries) - 1));
    const int64_t tile_of_queries = head * all.query_tiles + i0 / Z::queries, before = (end - 1) / Z::keys - tile,
                  after = tile;
    unsigned* const semaphore = all.semaphores + tile_of_queries * Z::warps + place;
    float4* const sums = all.sums + tile_of_queries * (8 * Z::threads) + threadIdx.x;
    if (add_in_order<Z::threads>(semaphore, sums, before, after, in_fours(sum)))
      store_rows(grad_q, head / heads, head % heads, i0 + row + place % 4 * 16 + lane.g, plan.queries, column,
                 plan.width, in_fours(sum), scale, scale);
  }
  store_rows(grad_k, unit / groups, unit % groups, j0 + lane.row_of(0), plan.keys, 0, plan.width, in_fours(sum_k),
             scale, scale);
  store_rows(grad_v, unit / groups, unit % groups, j0 + lane.row_of(0), plan.keys, 0, plan.width, in_fours(sum_v), 1.f,
             1.f);
}

}  // namespace

void attention_grad_wgmma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                          Tensor& grad_k, Tensor& grad_v) {
  if (plan.limit(0) == 0) grad_q.fill_(0);  // no block writes the queries that see no key
  with_full_depth(q, [&]<class T, int depth> {
    using Z = BackwardTiles<depth>;
    const GradTiles in{map_tiles(grad, Z::queries), map_tiles(q, Z::queries), map_tiles(k, Z::keys),
                       map_tiles(v, Z::keys),       lse.data<float>(),        delta};
    const int64_t key_tiles = tiles_of(plan.keys, Z::keys), query_tiles = tiles_of(plan.queries, Z::queries);
    const int64_t places = key_tiles > 1 ? plan.batch * plan.heads * query_tiles * Z::queries * 16 * depth : 0;
    const cuda::Scratch sums(size_t(places) * sizeof(float));
    cuda::launch({"attention_grad", dim3(cuda::blocks_of("attention_grad", key_tiles * plan.groups * plan.batch)),
                  dim3(Z::threads), Z::bytes},
                 attention_grad_wgmma_kernel<T, depth>, plan, in, Heads<T>(grad_q), Heads<T>(grad_k), Heads<T>(grad_v),
                 SharedByBlocks{counters, counters + 1, sums.as<float4>(), int(key_tiles), query_tiles});
  });
}

}  // namespace lockstep::on_cuda
