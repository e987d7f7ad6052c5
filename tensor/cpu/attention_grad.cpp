// Attention backward. The attention weights P are computed again, tile by tile, from q, k and the saved log-sum-exp
// (lse). out is the output and grad its gradient; dP and dS are the gradients of weights and scores; i is a query:
//
//   P = exp(q k^T scale + mask - lse)     dP = grad v^T        delta_i = grad_i . out_i
//   dS = P (dP - delta)
//   grad_v += P^T grad     grad_k += dS^T q scale     grad_q += dS k scale
//
// A unit of work is one key head with the query heads that share it. A unit visits each key tile, and for each key tile
// the query tiles that see it. So grad_k and grad_v of only one key tile are summed at a time. q, grad and the sums of
// grad_q of the whole unit are in scratch memory meanwhile. The summation order depends only on the shape, and on the
// layout if there is one: query tiles, or groups of queries, that attend to nothing in a key tile are skipped as in
// attention.cpp, and so are queries whose window begins after the key tile.
#include "tensor/cpu/attention_tile.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t tile_queries = 60;  // a multiple of group_rows

template <class A> struct Tiles {
  A *weights, *slopes;                         // tile_queries rows: P; dP, later dS
  A *key, *key_t, *value_t, *grad_k, *grad_v;  // tile_keys rows, or columns
  A *q, *grad, *grad_q, *delta;                // all queries of all heads of the unit

  static int64_t elements(int64_t width, int64_t queries) {
    return tile_keys * (2 * tile_queries + 5 * width) + queries * (3 * width + 1);
  }
  Tiles(A* scratch, int64_t width, int64_t queries) {
    const auto take = [&](int64_t n) { return std::exchange(scratch, scratch + n); };
    for (A** tile : {&weights, &slopes}) *tile = take(tile_queries * tile_keys);
    for (A** tile : {&key, &key_t, &value_t, &grad_k, &grad_v}) *tile = take(tile_keys * width);
    for (A** all : {&q, &grad, &grad_q}) *all = take(queries * width);
    delta = take(queries);
  }
};

/// For one row, which sees n keys: turns `weights` from scores into P, the attention weights, and `slopes` from dP into
/// dS, the gradient of the scores. keep: dropout's factors, or null.
template <class A> void differentiate(A* weights, A* slopes, int64_t n, A lse, A delta, const A* keep) {
  constexpr int w = lane_count<A>;
  constexpr Full<A> full;
  const Lanes<A> number = lane_numbers<A>();
  for (int j = 0; j < tile_keys; j += w) {
    Lanes<A> x = load(weights + j, full), slope = load(slopes + j, full);
    if (n < tile_keys) {
      const auto visible = number < A(n - j);
      x = choose(visible, x, splat(-infinity<A>));
      slope = choose(visible, slope, Lanes<A>{});
    }
    x = exp_lanes(x - lse);
    if (keep) {
      const Lanes<A> factor = load(keep + j, full);
      store(weights + j, x * factor, full);
      store(slopes + j, x * (slope * factor - delta), full);
    } else {
      store(weights + j, x, full);
      store(slopes + j, x * (slope - delta), full);
    }
  }
}

/// delta of one query: the dot product of its rows of out and of grad.
template <class A, class T> A row_delta(const T* grad, const T* out, int64_t width) {
  Lanes<A> sum[4] = {};
  each_vector<A>(width, [&](int64_t d, auto count, auto k) { sum[k] += load(grad + d, count) * load(out + d, count); });
  return sum_lanes<A>(sum);
}

template <class T> struct Backward {
  using A = Acc<T>;
  const AttentionPlan& plan;
  Heads<const T> grad, q, k, v, out;
  const A* lse;
  Heads<T> grad_q, grad_k, grad_v;
  int64_t width = padded<A>(plan.width), shared = plan.heads / plan.groups;

  /// Computes weights P and score gradients dS of a group of queries from query i on, for the key tile at j0, and adds
  /// to grad_q. The group begins at row `at` of the unit and at row `row` of the query tile. `attended`: one bit per
  /// key for each row; null without a layout.
  void queries(const Tiles<A>& tile, int64_t b, int64_t h, int64_t i, int64_t at, int64_t row, int64_t rows, int64_t j0,
               const uint64_t* attended) const {
    const int64_t keys = std::min(tile_keys, plan.keys - j0);
    const int64_t visible_keys = std::min(keys, plan.limit(i + rows - 1) - j0);  // visible to the group's last row
    A *const weights = tile.weights + row * tile_keys, *const slopes = tile.slopes + row * tile_keys;
    if (visible_keys > 0) {
      group_product<A, Left::plain>(rows, visible_keys, plan.width, tile.q + at * width, width, tile.key_t, tile_keys,
                                    nullptr, weights, tile_keys);
      group_product<A, Left::plain>(rows, visible_keys, plan.width, tile.grad + at * width, width, tile.value_t,
                                    tile_keys, nullptr, slopes, tile_keys);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t n = std::min(keys, plan.limit(i + r) - j0);
      if (plan.mask && n > 0) add_mask(plan, b, h, i + r, j0, n, weights + r * tile_keys);
      hide_before(plan, i + r, j0, -infinity<A>, weights + r * tile_keys);
      hide_before(plan, i + r, j0, A(0), slopes + r * tile_keys);
      if (attended) hide(attended[r], weights + r * tile_keys);
      alignas(64) A keep[tile_keys];
      if (plan.dropout > 0) dropout_row(plan, b, h, i + r, j0, keep);
      const A saved = lse[(b * plan.heads + h) * plan.queries + i + r];
      // A row that attends to nothing has lse = -inf, which would give NaN; +inf gives zeros.
      differentiate(weights + r * tile_keys, slopes + r * tile_keys, n, saved == -infinity<A> ? infinity<A> : saved,
                    tile.delta[at + r], plan.dropout > 0 ? keep : nullptr);
    }
    if (visible_keys > 0)
      group_product<A, Left::plain>(rows, width, visible_keys, slopes, tile_keys, tile.key, width, keep_all<A>,
                                    tile.grad_q + at * width, width);
  }

  /// Adds to grad_k and grad_v of a group of keys the contributions of rows [begin, rows) of a query tile. The group
  /// begins at key j of the key tile at j0. The query tile begins at query i0, which is row `at` of the unit.
  void keys(const Tiles<A>& tile, int64_t i0, int64_t at, int64_t j0, int64_t j, int64_t begin, int64_t rows) const {
    const int64_t count = std::min<int64_t>(group_rows, std::min(tile_keys, plan.keys - j0) - j);
    const int64_t first = std::max(begin, plan.first_query(j0 + j) - i0);  // earlier rows have weight 0
    if (first >= rows) return;
    const int64_t weight = first * tile_keys + j;
    group_product<A, Left::transposed>(count, width, rows - first, tile.weights + weight, tile_keys,
                                       tile.grad + (at + first) * width, width, keep_all<A>, tile.grad_v + j * width,
                                       width);
    group_product<A, Left::transposed>(count, width, rows - first, tile.slopes + weight, tile_keys,
                                       tile.q + (at + first) * width, width, keep_all<A>, tile.grad_k + j * width,
                                       width);
  }

  void pack_queries(const Tiles<A>& tile, int64_t b, int64_t h, int64_t at) const {
    pack_rows(q.row(b, h, 0), q.token, plan.queries, plan.width, A(plan.scale), tile.q + at * width);
    pack_rows(grad.row(b, h, 0), grad.token, plan.queries, plan.width, A(1), tile.grad + at * width);
    for (int64_t i = 0; i < plan.queries; ++i)
      tile.delta[at + i] = row_delta<A>(grad.row(b, h, i), out.row(b, h, i), plan.width);
  }

  void unit(int64_t b, int64_t g, A* scratch) const {
    const int64_t all = shared * plan.queries;
    const Tiles<A> tile(scratch, width, all);
    for (int64_t s = 0; s < shared; ++s) pack_queries(tile, b, g * shared + s, s * plan.queries);
    std::fill_n(tile.grad_q, all * width, A(0));
    for (int64_t j0 = 0; j0 < plan.keys; j0 += tile_keys) {
      const int64_t count = std::min(tile_keys, plan.keys - j0);
      pack_rows(k.row(b, g, j0), k.token, count, plan.width, A(1), tile.key);
      pack_transposed(k.row(b, g, j0), k.token, count, plan.width, tile.key_t);
      pack_transposed(v.row(b, g, j0), v.token, count, plan.width, tile.value_t);
      std::fill_n(tile.grad_k, count * width, A(0));
      std::fill_n(tile.grad_v, count * width, A(0));
      const int64_t last = plan.end_query(j0 + count - 1);
      for (int64_t s = 0; s < shared; ++s)
        for (int64_t i0 = plan.first_query(j0) / tile_queries * tile_queries; i0 < last; i0 += tile_queries) {
          const int64_t at = s * plan.queries + i0, h = g * shared + s;
          int64_t begin = 0, end = std::min(tile_queries, last - i0);
          uint64_t bits[tile_queries];
          const uint64_t* const attended = plan.layout.block > 0 ? bits : nullptr;
          if (attended) {
            if (!plan.attended(h, i0, end, j0, bits)) continue;
            while (bits[end - 1] == 0) --end;
            while (bits[begin] == 0) ++begin;
            begin = begin / group_rows * group_rows;
          }
          for (int64_t i = begin; i < end; i += group_rows)
            queries(tile, b, h, i0 + i, at + i, i, std::min<int64_t>(group_rows, end - i), j0,
                    attended ? attended + i : nullptr);
          for (int64_t j = 0; j < count; j += group_rows) keys(tile, i0, at, j0, j, begin, end);
        }
      for (int64_t j = 0; j < count; ++j) {
        write_row(tile.grad_k + j * width, A(1), plan.width, grad_k.row(b, g, j0 + j));
        write_row(tile.grad_v + j * width, A(1), plan.width, grad_v.row(b, g, j0 + j));
      }
    }
    for (int64_t n = 0; n < all; ++n)
      write_row(tile.grad_q + n * width, A(plan.scale), plan.width,
                grad_q.row(b, g * shared + n / plan.queries, n % plan.queries));
  }

  void run() const {
    const int64_t units = plan.batch * plan.groups, queries = shared * plan.queries;
    const double work = double(units) * double(queries) * double(plan.keys) * double(plan.width);
    each_unit<A>(units, Tiles<A>::elements(width, queries), work,
                 [&](int64_t n, A* scratch) { unit(n / plan.groups, n % plan.groups, scratch); });
  }
};

}  // namespace

void attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& out, const Tensor& lse, const AttentionArgs& args, Tensor& grad_q, Tensor& grad_k,
                    Tensor& grad_v) {
  const AttentionPlan plan(q, k, mask, args);
  dispatch<float, double, Half, BFloat16>(q.dtype(), "attention_grad", [&]<class T> {
    using In = Heads<const T>;
    const Backward<T> backward{plan,
                               In(grad),
                               In(q),
                               In(k),
                               In(v),
                               In(out),
                               lse.data<Acc<T>>(),
                               Heads<T>(grad_q),
                               Heads<T>(grad_k),
                               Heads<T>(grad_v)};
    backward.run();
  });
}

}  // namespace lockstep::on_cpu
