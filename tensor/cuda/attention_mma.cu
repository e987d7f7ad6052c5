// Attention forward of f16 and bf16 on tensor cores, for heads of 8, 16, ... 128 elements, aligned to 16 bytes. The
// algorithm is that of attention.cu. A block of four warps owns 64 queries and walks along their keys.
#include "tensor/cuda/attention_mma.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 128, block_rows = 64;
constexpr int forward_keys = 64;  // keys that a block processes at a time

template <class T, int depth, bool sparse>
__global__ void __launch_bounds__(threads, depth <= 4 ? 3 : 2)
    attention_mma_kernel(AttentionPlan plan, Heads<const T> q, Heads<const T> k, Heads<const T> v, Heads<T> out,
                         float* lse, int64_t tiles) {
  using Rows = RowTile<depth>;
  constexpr int count = forward_keys / 8;
  if (!has_tensor_cores) return;
  LOCKSTEP_DYNAMIC_SHARED(uint32_t, shared);
  uint32_t* free = shared;
  const Rows queries = take<Rows, block_rows>(free), all_keys = take<Rows, 2 * forward_keys>(free),
             all_values = take<Rows, 2 * forward_keys>(free);
  LOCKSTEP_SHARED(uint64_t, visible, [2][block_rows]);
  const Lane lane;
  const int64_t unit = blockIdx.x / tiles, i0 = (tiles - 1 - blockIdx.x % tiles) * block_rows;
  const int64_t h = unit % plan.heads, b = unit / plan.heads, g = h / (plan.heads / plan.groups),
                rows = plan.queries - i0;
  const int64_t end = plan.limit(i0 + (rows < block_rows ? rows : block_rows) - 1);

  // Moves j0 to the next tile of keys that these queries attend to, and starts to load its keys and values into buffer
  // `number`.
  const auto fetch = [&](int64_t& j0, int number) {
    if (sparse) {
      while (j0 < end && !plan.attended(h, i0, block_rows, j0, forward_keys, visible[number])) j0 += forward_keys;
    }
    if (j0 >= end) return;
    at<forward_keys>(all_keys, number)
        .template fill<threads, forward_keys>(k.row(b, g, j0), k.token, plan.keys - j0, plan.width);
    at<forward_keys>(all_values, number)
        .template fill<threads, forward_keys>(v.row(b, g, j0), v.token, plan.keys - j0, plan.width);
  };
  queries.template fill<threads, block_rows>(q.row(b, h, i0), q.token, rows, plan.width);
  float sum[2 * depth][4] = {}, top[2] = {-infinity<float>, -infinity<float>}, total[2] = {};
  int64_t j0 = plan.first_key(i0) / forward_keys * forward_keys, next;
  fetch(j0, 0);
  for (int number = 0; j0 < end; number ^= 1, j0 = next) {
    wait_for_copies();
    __syncthreads();  // this buffer has arrived, and the other one has been read
    next = j0 + forward_keys;
    fetch(next, number ^ 1);
    float score[count][4] = {};
    multiply<T>(queries, at<forward_keys>(all_keys, number), score);
    float highest[2] = {top[0], top[1]}, shrink[2], base[2];
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t i = i0 + lane.row_of(e), j = j0 + lane.column_of(n, e);
        const bool attended = !sparse || attends(visible[number], lane.row_of(e), lane.column_of(n, e));
        score[n][e] = i < plan.queries && j < plan.keys && attended
                          ? plan.masked<T>(score[n][e] * float(plan.scale), b, h, i, j)
                          : -infinity<float>;
        highest[e / 2] = larger_of(score[n][e], highest[e / 2]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      highest[r] = warp_max<4>(highest[r]);
      base[r] =
          highest[r] == -infinity<float> ? 0.f : highest[r];  // all keys masked so far: exp() must give 0, not NaN
      shrink[r] = exp_of(top[r] - base[r]);
      top[r] = highest[r];
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
    accumulate<T>(score, at<forward_keys>(all_values, number), sum);
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = warp_sum<4>(total[r]);
    const int64_t row = i0 + lane.row_of(2 * r);
    if (lane.t == 0 && row < plan.queries) lse[(b * plan.heads + h) * plan.queries + row] = top[r] + log_of(all);
    factor[r] = all == 0 ? 0.f : 1.f / all;
  }
  store_rows(out, b, h, i0 + lane.row_of(0), plan.queries, 0, plan.width, sum, factor[0], factor[1]);
}

/// True if rows may be read eight elements (16 bytes) at a time.
bool in_eights(const Tensor& x) {
  bool fits = is_aligned(static_cast<const uint16_t*>(x.raw_data()), 8) && x.shape()[3] % 8 == 0;
  for (int d = 0; d < 3; ++d) fits &= x.strides()[d] % 8 == 0 || x.shape()[d] <= 1;
  return fits;
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
  if (fits_wgmma(plan, {&q, &k, &v})) {
    attention_wgmma(plan, q, k, v, out, lse);
    return true;
  }
  with_depth(plan, q, [&]<class T, int depth, bool sparse> {
    using In = Heads<const T>;
    const int64_t tiles = tiles_of(plan.queries, block_rows);
    cuda::launch({"attention", dim3(cuda::blocks_of("attention", tiles * plan.heads * plan.batch)), dim3(threads),
                  bytes_of<depth>(block_rows + 4 * forward_keys)},
                 attention_mma_kernel<T, depth, sparse>, plan, In(q), In(k), In(v), Heads<T>(out), lse.data<float>(),
                 tiles);
  });
  return true;
}

}  // namespace lockstep::on_cuda
