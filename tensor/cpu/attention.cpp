// Attention forward, in tiles (Dao et al., FlashAttention): the T x S matrix of scores is never stored.
//
//       keys ->   tile 0   tile 1   tile 2
//               +--------+--------+--------+   A thread walks along the key tiles of a query block. Each row keeps its
//  query block  |  ....  |  ....  |        |   maximum m, the sum l of exp(score - m) and the unfinished output. When a
//  (252 rows)   |  ....  |  ....  | causal:|   tile raises m, l and the output are scaled by exp(old m - new m). At the
//               |  ....  |  ....  | skipped|   end out /= l, and lse = m + log l is saved for backward.
//               +--------+--------+--------+
//
// A tile that lies before the window of all rows, or in which a layout (tensor/block_layout.h) attends to nothing, is
// skipped, for the whole query block or for a group of its rows. In a tile that is attended to in part, the rest is
// masked. Skipping a tile never changes the summation order.
//
// Work: 4 B H T S D operations for batch size B, H heads, T queries, S keys and head size D (half when causal; a window
// W takes the place of S). Memory: O(block) per thread.
#include <algorithm>

#include "tensor/cpu/attention_tile.h"
#include "tensor/math.h"
#include "tensor/paged_attention.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t block_queries = 252;  // a multiple of group_rows; large, because every block packs the keys again

constexpr int64_t block_groups = block_queries / group_rows;

template <class A> struct Block {
  int64_t width;  // padded to whole vectors
  A *q, *out, *key, *value, *scores;
  Lanes<A>*sum, *top;  // per row: lane sums of exp(score - top); per group: maxima as in max_of_rows

  static int64_t elements(int64_t width) {
    return 2 * (block_queries + tile_keys) * width + group_rows * tile_keys +
           (block_queries + block_groups) * lane_count<A>;
  }
  Block(A* scratch, int64_t padded_width) : width(padded_width) {
    const auto take = [&](int64_t n) { return std::exchange(scratch, scratch + n); };
    q = take(block_queries * width);
    out = take(block_queries * width);
    key = take(tile_keys * width);
    value = take(tile_keys * width);
    scores = take(group_rows * tile_keys);
    sum = reinterpret_cast<Lanes<A>*>(take(block_queries * lane_count<A>));
    top = reinterpret_cast<Lanes<A>*>(take(block_groups * lane_count<A>));
  }
};

/// Turns scores (rows, keys of a tile) into exp(score - the row's maximum). Row r attends to the first n[r]
/// keys of the tile. Updates each row's maximum (top) and sum. keep[r] receives exp(old maximum - new maximum), the
/// factor for row r's earlier results.
template <class A> void soften(A* scores, const int64_t* n, int rows, Lanes<A>& top, Lanes<A>* sum, A* keep) {
  constexpr int w = lane_count<A>, vectors = int(tile_keys) / w, apart = w / 8;
  constexpr Full<A> full;
  const Lanes<A> none = splat(-infinity<A>), number = lane_numbers<A>();
  Lanes<A> row_max[8];
  for (int r = 0; r < 8; ++r) {
    row_max[r] = none;
    for (int j = 0; r < rows && j < vectors; ++j) {
      A* const at = scores + r * tile_keys + j * w;
      Lanes<A> x = load(at, full);
      if (n[r] < tile_keys) store(at, x = choose(number < A(n[r] - j * w), x, none), full);
      row_max[r] = max_of<A>(row_max[r], x);
    }
  }
  const Lanes<A> highest = max_of<A>(top, max_of_rows<A>(row_max));
  // A row that has seen no key yet has the maximum -inf. Subtracting 0 instead gives exp(-inf) = 0, not NaN.
  const Lanes<A> base = choose(highest == none, Lanes<A>{}, highest);
  const Lanes<A> shrink = exp_lanes(top - base);
  top = highest;
  for (int r = 0; r < rows; ++r) {
    keep[r] = shrink[r * apart];
    Lanes<A> total = sum[r] * keep[r];
    for (int j = 0; j < vectors; ++j) {
      A* const at = scores + r * tile_keys + j * w;
      const Lanes<A> x = exp_lanes(load(at, full) - base[r * apart]);
      total += x;
      store(at, x, full);
    }
    sum[r] = total;
  }
}

template <class T> struct Forward {
  using A = Acc<T>;
  const AttentionPlan& plan;
  Heads<const T> q, k, v;
  Heads<T> out;
  A* lse;                               // logarithm of each row's sum of exp(score), for backward; null: not wanted
  std::span<const int32_t> table = {};  // block table of k and v (paged attention); empty: not paged
  int64_t block_tokens = tile_keys;
  int64_t width = padded<A>(plan.width), blocks = (plan.queries + block_queries - 1) / block_queries;

  struct RowBlock {
    int64_t b, h, g, i0, rows;
  };
  RowBlock place(int64_t unit) const {
    const int64_t i0 = unit % blocks * block_queries, h = unit / blocks % plan.heads;
    return {unit / blocks / plan.heads, h, h / (plan.heads / plan.groups), i0,
            std::min(block_queries, plan.queries - i0)};
  }

  /// Packs the tile of keys that begins at key j0, and its values. If `table` is not empty, keys and values lie in
  /// blocks of a paged cache, and table[i] is the number of the cache's block that holds block i of the keys.
  void pack(const Block<A>& block, const RowBlock& at, int64_t j0, int64_t keys) const {
    for (int64_t part = 0; part < tile_keys; part += block_tokens) {
      const int64_t count = std::min(block_tokens, keys - part), j = j0 + part;
      const bool any = count > 0;  // false: no keys left, packs zeros
      const int64_t b = table.empty() || !any ? at.b : table[size_t(j / block_tokens)];
      const int64_t t = table.empty() || !any ? j : j % block_tokens;
      pack_transposed(any ? k.row(b, at.g, t) : k.data, k.token, count, plan.width, block.key + part, block_tokens);
      if (any && !in_place(at))
        pack_rows(v.row(b, at.g, t), v.token, count, plan.width, A(1), block.value + part * width);
    }
  }
  /// True if values are read in place, without packing: for few queries, which read each value once, packing costs
  /// more.
  bool in_place(const RowBlock& at) const {
    return std::is_same_v<T, A> && table.empty() && plan.width == width && at.rows <= group_rows;
  }

  /// Adds a tile of keys (the `keys` keys from j0 on) to the results of the group of rows that begins at row i of the
  /// block. `attended`: for each row of the block, one bit per key of the tile; null without a layout.
  void group(const Block<A>& block, const RowBlock& at, int64_t i, int64_t j0, int64_t keys,
             const uint64_t* attended) const {
    const int64_t rows = std::min<int64_t>(group_rows, at.rows - i), first = at.i0 + i;
    const int64_t visible_keys = std::min(keys, plan.limit(first + rows - 1) - j0);  // visible to the group's last row
    if (visible_keys <= 0 ||
        (attended && std::all_of(attended + i, attended + i + rows, [](uint64_t row) { return row == 0; })))
      return;
    int64_t n[group_rows];
    A keep[group_rows];
    A* const scores = block.scores;
    group_product<A, Left::plain>(rows, visible_keys, plan.width, block.q + i * width, width, block.key, tile_keys,
                                  nullptr, scores, tile_keys);
    for (int64_t r = 0; r < rows; ++r) {
      n[r] = std::min(keys, plan.limit(first + r) - j0);
      if (plan.mask) add_mask(plan, at.b, at.h, first + r, j0, n[r], scores + r * tile_keys);
      hide_before(plan, first + r, j0, -infinity<A>, scores + r * tile_keys);
      if (attended) hide(attended[i + r], scores + r * tile_keys);
    }
    soften(scores, n, int(rows), block.top[i / group_rows], block.sum + i, keep);
    if (plan.dropout > 0)
      for (int64_t r = 0; r < rows; ++r) drop(plan, at.b, at.h, first + r, j0, scores + r * tile_keys);
    const A* value = block.value;
    if constexpr (std::is_same_v<T, A>)
      if (in_place(at)) value = v.row(at.b, at.g, j0);
    group_product<A, Left::plain>(rows, width, visible_keys, scores, tile_keys, value, in_place(at) ? v.token : width,
                                  keep, block.out + i * width, width);
  }

  void unit(const RowBlock& at, A* scratch) const {
    const Block<A> block(scratch, width);
    pack_rows(q.row(at.b, at.h, at.i0), q.token, at.rows, plan.width, A(plan.scale), block.q);
    std::fill_n(block.out, at.rows * width, A(0));
    std::fill_n(block.sum, at.rows, Lanes<A>{});
    std::fill_n(block.top, block_groups, splat(-infinity<A>));
    const int64_t end = plan.limit(at.i0 + at.rows - 1);
    uint64_t rows[block_queries];
    uint64_t* const attended = plan.layout.block > 0 ? rows : nullptr;
    for (int64_t j0 = plan.first_key(at.i0) / tile_keys * tile_keys; j0 < end; j0 += tile_keys) {
      const int64_t keys = std::min(tile_keys, plan.keys - j0);
      if (attended && !plan.attended(at.h, at.i0, at.rows, j0, attended)) continue;
      pack(block, at, j0, keys);
      const int64_t from = std::max<int64_t>(0, plan.first_query(j0) - at.i0) / group_rows * group_rows,
                    to = std::min(at.rows, plan.end_query(j0 + keys - 1) - at.i0);
      for (int64_t i = from; i < to; i += group_rows) group(block, at, i, j0, keys, attended);
    }
    for (int64_t i = 0; i < at.rows; ++i) {
      const A sum = sum_lanes<A>(block.sum[i]), top = block.top[i / group_rows][i % group_rows * (lane_count<A> / 8)];
      if (lse) lse[(at.b * plan.heads + at.h) * plan.queries + at.i0 + i] = top + math::log(sum);
      write_row(block.out + i * width, sum == 0 ? A(0) : 1 / sum, plan.width, out.row(at.b, at.h, at.i0 + i));
    }
  }

  int64_t units() const { return plan.batch * plan.heads * blocks; }
  double work() const {
    return double(plan.batch * plan.heads) * double(plan.queries) * double(plan.keys) * double(plan.width);
  }
  void run() const {
    each_unit<A>(units(), Block<A>::elements(width), work(), [&](int64_t n, A* scratch) { unit(place(n), scratch); });
  }
};

}  // namespace

void attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionArgs& args,
               Tensor& out, Tensor& lse) {
  const AttentionPlan plan(q, k, mask, args);
  dispatch<float, double, Half, BFloat16>(q.dtype(), "attention", [&]<class T> {
    using In = Heads<const T>;
    const Forward<T> forward{plan, In(q), In(k), In(v), Heads<T>(out), lse.data<Acc<T>>()};
    forward.run();
  });
}

void paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                     double scale, int64_t window, Tensor& out) {
  dispatch<float, double, Half, BFloat16>(q.dtype(), "paged_attention", [&]<class T> {
    using A = Acc<T>;
    using In = Heads<const T>;
    std::vector<AttentionPlan> plans;
    std::vector<Forward<T>> all;
    std::vector<int64_t> ends;  // running total of the units in `all`
    plans.reserve(rows.size());
    int64_t first = 0, units = 0;
    double work = 0;
    for (const PagedRows& r : rows) {
      const Tensor asked = q.narrow(2, first, r.queries);
      Tensor part = out.narrow(2, first, r.queries);
      plans.emplace_back(q.shape()[1], keys.shape()[1], r.queries, r.length, q.shape()[3], scale, window);
      all.push_back(Forward<T>{plans.back(), In(asked), In(keys), In(values), Heads<T>(part), nullptr, r.blocks,
                               keys.shape()[2]});
      first += r.queries;
      ends.push_back(units += all.back().units());
      work += all.back().work();
    }
    if (all.empty()) return;
    each_unit<A>(units, Block<A>::elements(all[0].width), work, [&](int64_t n, A* scratch) {
      const size_t i = size_t(std::upper_bound(ends.begin(), ends.end(), n) - ends.begin());
      all[i].unit(all[i].place(n - (i ? ends[i - 1] : 0)), scratch);
    });
  });
}

}  // namespace lockstep::on_cpu
