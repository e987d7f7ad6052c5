// Attention backward of f16 and bf16 on tensor cores, in one pass: the scores are computed once for all three
// gradients.
//
// A block of eight warps owns 128 keys and loops over the tiles of queries that attend to them (in all heads that share
// the keys, in order), with grad_k and grad_v in registers. All blocks add their parts of grad_q to shared sums in f32.
// The order of these additions is fixed: for each tile of queries, a block waits until its turn. The picture shows the
// turns with a causal mask, for example that the block of keys 3 is the first to add to tile 3:
//
//   queries ->   tile 0   tile 1   tile 2   tile 3
//   keys 3                                    1       The block of the last keys starts first. A block has turn n at
//   keys 2                           1        2       its n-th tile. The block with turn n - 1 got there one tile
//   keys 1                  1        2        3       earlier, so blocks that start together do not wait. The block
//   keys 0         1        2        3        4       with the last turn rounds the sum to 16 bits. With a sliding
//                                                     window, blocks outside the window of a tile have no turn.
//
// Five products of tiles: 10 B H T S D operations (batch, heads, queries, keys, head size), half of that when causal.
// For every 1280 operations, one f32 of a sum is read and written, mostly in L2, because blocks that run at the same
// time work on the same few heads.
#include "tensor/cuda/attention_mma.h"
#include "tensor/cuda/semaphore.h"

namespace lockstep::on_cuda {
namespace {

constexpr int grad_threads = 256, block_keys = 128;
constexpr int grad_step = 32;  // queries that a block processes at a time

/// Memory that all blocks of a backward pass share.
struct Shared {
  unsigned *ticket,
      *semaphores;  ///< both 0 at first. semaphores: for each tile of queries and warp, how many blocks have added
  float4* sums;     ///< sums of each tile of queries, in the order in which the warp's lanes hold them
  int key_tiles;
  int64_t query_tiles;
};

template <class T, int depth, bool sparse>
__global__ void __launch_bounds__(grad_threads)
    attention_grad_mma_kernel(GradPlan<T> plan, Heads<T> grad_q, Heads<T> grad_k, Heads<T> grad_v, Shared all,
                              int stages) {
  using Rows = RowTile<depth>;
  using Slopes = RowTile<grad_step / 16>;
  constexpr int count = grad_step / 8, warps = grad_threads / warp;
  if (!has_tensor_cores) return;
  LOCKSTEP_DYNAMIC_SHARED(uint32_t, shared);
  uint32_t* free = shared;
  const Rows keys = take<Rows, block_keys>(free), values = take<Rows, block_keys>(free);
  const Slopes slopes = take<Slopes, block_keys>(free);  // stored as keys by queries
  const Rows all_queries = take<Rows, 2 * grad_step>(free), all_grads{all_queries.words + grad_step * Rows::line};
  LOCKSTEP_SHARED(uint64_t, visible, [2][block_keys / 64 * grad_step]);
  LOCKSTEP_SHARED(float, row_sums, [2][2][grad_step]);  // [stage][0: lse, 1: delta][query]
  const Lane lane;
  const int ticket = int(take_ticket(all.ticket)), unit = ticket / all.key_tiles,
            tile = all.key_tiles - 1 - ticket % all.key_tiles, g = unit % int(plan.groups), b = unit / int(plan.groups);
  const int64_t j0 = int64_t(tile) * block_keys, first = plan.first_query(j0) / grad_step * grad_step,
                last = plan.end_query((j0 + block_keys < plan.keys ? j0 + block_keys : plan.keys) - 1),
                shared_by = plan.heads / plan.groups, width = plan.width;
  const float scale = float(plan.scale);

  // A step is one tile of queries of one head. seek() finds the next step in which a query attends to a key of this
  // block. A stage is a shared-memory buffer for one step: a tile of queries and a tile of their gradients.
  const int of_head = int((last - first + grad_step - 1) / grad_step), steps = of_head * int(shared_by);
  const auto head_of = [&](int step) { return g * shared_by + step / of_head; };
  const auto query_of = [&](int step) { return first + int64_t(step % of_head) * grad_step; };
  const auto seek = [&](int step, int parity) {
    if (sparse) {
      while (step < steps && !plan.attended(head_of(step), query_of(step), grad_step, j0, block_keys, visible[parity]))
        ++step;
    }
    return step;
  };
  const auto fetch = [&](int step, int stage) {
    if (step >= steps) return;
    const int64_t h = head_of(step), i0 = query_of(step), rows = plan.queries - i0;
    at<2 * grad_step>(all_queries, stage)
        .template fill<grad_threads, grad_step>(plan.q.row(b, h, i0), plan.q.token, rows, width);
    at<2 * grad_step>(all_grads, stage)
        .template fill<grad_threads, grad_step>(plan.grad.row(b, h, i0), plan.grad.token, rows, width);
    const int number = int(threadIdx.x) / grad_step, row = int(threadIdx.x) % grad_step;
    if (number < 2)
      copy_async<4>(&row_sums[stage][number][row], (number == 0 ? plan.lse : plan.delta) + plan.row(b, h, i0 + row),
                    row < rows);
  };
  keys.template fill<grad_threads, block_keys>(plan.k.row(b, g, j0), plan.k.token, plan.keys - j0, width);
  values.template fill<grad_threads, block_keys>(plan.v.row(b, g, j0), plan.v.token, plan.keys - j0, width);

  float sum_k[2 * depth][4] = {}, sum_v[2 * depth][4] = {};
  int step = seek(0, 0), next;
  fetch(step, 0);
  for (int parity = 0; step < steps; parity ^= 1, step = next) {
    const int64_t h = head_of(step), i0 = query_of(step),
                  end = plan.limit((i0 + grad_step < plan.queries ? i0 + grad_step : plan.queries) - 1);
    const int used = end - j0 < block_keys ? int(end - j0) : block_keys, stage = parity * (stages - 1);
    wait_for_copies();
    __syncthreads();  // this stage has arrived; the other stage and the slopes have been read
    next = seek(step + 1, parity ^ 1);
    if (stages == 2) fetch(next, stage ^ 1);
    if (lane.row < used) {  // else no query sees the warp's keys
      const Rows queries = at<2 * grad_step>(all_queries, stage), grads = at<2 * grad_step>(all_grads, stage);
      float score[count][4] = {}, slope[count][4] = {};  // indexed by (key, query)
      multiply<T>(keys, queries, score);
      multiply<T>(values, grads, slope);
      const uint32_t kept = plan.template kept_of<grad_step / 2>(b, h, Scores{lane, i0, j0, true});
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float weight, difference;
          plan.differentiate(
              b, h, i0 + lane.column_of(n, e), j0 + lane.row_of(e),
              !sparse ||
                  attends(visible[parity], lane.row_of(e) / 64 * grad_step + lane.column_of(n, e), lane.row_of(e) % 64),
              plan.template factor<float>(kept, 4 * n + e), &row_sums[stage][0][lane.column_of(n, e)],
              &row_sums[stage][1][lane.column_of(n, e)], score[n][e] * scale, slope[n][e], weight, difference);
          score[n][e] = weight;
          slope[n][e] = difference;
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          slopes.words[lane.row_of(e) * Slopes::line + lane.column_of(n, 0) / 2] =
              pack<T>(slope[n][e], slope[n][e + 1]);
      }
      accumulate<T>(score, grads, sum_v);
      accumulate<T>(slope, queries, sum_k);
    }
    __syncthreads();  // the slopes are stored and the stage has been read
    if (stages == 1) fetch(next, 0);

    // Each warp computes 16 of the 32 rows and a quarter of the columns of a tile of grad_q.
    const int place = int(threadIdx.x) / warp, row = place % 2 * 16, column = place / 2 * (4 * depth);
    float sum[depth / 2][4] = {};
#pragma unroll 2
    for (int j = 0; j < used; j += 16) {
      uint32_t a[4];
      slopes.left_turned(j, row, a);
      multiply_rows<T>(a, keys, j, column, sum);
    }
    const int64_t tile_of_queries = (b * plan.heads + h) * all.query_tiles + i0 / grad_step,
                  tiles = (end - 1) / block_keys + 1;
    int64_t before = tiles - 1 - tile, after = tile - plan.first_key(i0) / block_keys;
    if (sparse) {
      before = plan.tiles_attended(h, i0, grad_step, tile + 1, tiles, block_keys);
      after = plan.tiles_attended(h, i0, grad_step, 0, tile, block_keys);
    }
    unsigned* const semaphore = all.semaphores + tile_of_queries * warps + place;
    float4* const sums = all.sums + tile_of_queries * (depth / 2 * grad_threads) + threadIdx.x;
    if (add_in_order<grad_threads>(semaphore, sums, before, after, sum))
      store_rows(grad_q, b, h, i0 + row + lane.g, plan.queries, column, width, sum, scale, scale);
  }
  store_rows(grad_k, b, g, j0 + lane.row_of(0), plan.keys, 0, width, sum_k, scale, scale);
  store_rows(grad_v, b, g, j0 + lane.row_of(0), plan.keys, 0, width, sum_v, 1.f, 1.f);
}

/// True if several blocks add to the same tile of grad_q.
bool has_semaphores(const AttentionPlan& plan) { return plan.keys > block_keys; }
/// Number of tiles of queries in all heads of the batch.
int64_t query_tiles_of(const AttentionPlan& plan) {
  return plan.batch * plan.heads * tiles_of(plan.queries, grad_step);
}

}  // namespace

int64_t counters_of_grad(const AttentionPlan& plan) {
  return 1 + (has_semaphores(plan) ? query_tiles_of(plan) * (grad_threads / warp) : 0);
}

void attention_grad_mma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                        Tensor& grad_k, Tensor& grad_v) {
  if (fits_wgmma(plan, {&grad, &q, &k, &v}))
    return attention_grad_wgmma(plan, grad, q, k, v, lse, delta, counters, grad_q, grad_k, grad_v);
  // No block writes grad_q of a query that attends to no key, so it is set to 0 here.
  if (plan.layout.block > 0 || plan.limit(0) == 0) grad_q.fill_(0);
  with_depth(plan, q, [&]<class T, int depth, bool sparse> {
    using In = Heads<const T>;
    const GradPlan<T> all{plan, In(grad), In(q), In(k), In(v), lse.data<float>(), delta};
    const cuda::Scratch sums(
        has_semaphores(plan) ? size_t(query_tiles_of(plan)) * grad_step * 16 * depth * sizeof(float) : 0);
    const int64_t key_tiles = tiles_of(plan.keys, block_keys);
    const unsigned blocks = cuda::blocks_of("attention_grad", key_tiles * plan.groups * plan.batch);
    const auto bytes = [](int stages) {
      return bytes_of<depth>(2 * block_keys + stages * 2 * grad_step) + bytes_of<grad_step / 16>(block_keys);
    };
    constexpr size_t fixed = 2048;  // static arrays, and what CUDA reserves
    const int stages = bytes(2) + fixed <= size_t(cuda::limits().shared_per_block) ? 2 : 1;
    cuda::launch({"attention_grad", dim3(blocks), dim3(grad_threads), bytes(stages)},
                 attention_grad_mma_kernel<T, depth, sparse>, all, Heads<T>(grad_q), Heads<T>(grad_k), Heads<T>(grad_v),
                 Shared{counters, counters + 1, sums.as<float4>(), int(key_tiles), tiles_of(plan.queries, grad_step)},
                 stages);
  });
}

}  // namespace lockstep::on_cuda
