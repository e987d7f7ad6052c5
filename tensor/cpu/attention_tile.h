#pragma once
// Shared by attention forward and backward: the problem as pointers and strides, packing of tiles, the product of two
// tiles in registers, masks and dropout of one row of scores. Tiles are f32 (f64 for f64), whatever dtype the tensors
// have.
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

#include "tensor/attention_sizes.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/registers.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

inline constexpr int64_t tile_keys = 64;  // keys per tile, and so the row length of every tile of scores

// register_product() keeps in registers its sums (6 rows of 4 vectors), one row of `b`, one element of `a`. That takes
// 6 * 4 + 4 + 1 = 29 of 32 registers or, with rows of 2 vectors, 6 * 2 + 2 + 1 = 15 of 16.
inline constexpr int group_rows = 6, group_vectors = vector_registers < 32 ? 2 : 4;

/// A tensor (B, heads, tokens, D) whose last dim has stride 1.
template <class T> struct Heads {
  T* data;
  int64_t batch, head, token;

  /// Refers to the elements of x, which have the type T.
  template <class Tensor>
  explicit Heads(Tensor& x)
      : data(static_cast<T*>(x.raw_data())), batch(x.strides()[0]), head(x.strides()[1]), token(x.strides()[2]) {}
  T* row(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * token; }
};

/// n rounded up to a multiple of `unit`.
inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// The sizes of one call of attention, its mask and its dropout probability.
struct AttentionPlan : AttentionSizes {
  const void* mask = nullptr;
  DType mask_dtype = DType::boolean;
  Dims mask_strides;
  double dropout = 0;

  /// The sizes of attention of q and k with a mask; `mask_tensor` may be undefined.
  AttentionPlan(const Tensor& q, const Tensor& k, const Tensor& mask_tensor, const AttentionArgs& args)
      : AttentionSizes(of(q, k, args)), dropout(args.dropout) {
    if (!mask_tensor.defined()) return;
    mask = mask_tensor.raw_data();
    mask_dtype = mask_tensor.dtype();
    mask_strides = mask_tensor.strides();
  }
  /// Causal attention of one sequence of `keys` tokens; the queries are its last `queries` tokens.
  AttentionPlan(int64_t heads_, int64_t groups_, int64_t queries_, int64_t keys_, int64_t width_, double scale_,
                int64_t window_)
      : AttentionSizes{1, heads_, groups_, queries_, keys_, width_, scale_, true, window_, {}, 0, heads_, {}} {}

  /// For attention with a layout, and r < count: sets bit j of rows[r] if query i0 + r of head h attends to key j0 + j.
  /// Returns false if none of these queries attends to any of the keys j0 .. j0 + tile_keys - 1.
  bool attended(int64_t h, int64_t i0, int64_t count, int64_t j0, uint64_t* rows) const {
    uint64_t any = 0;
    for (int64_t r = 0; r < count;) {
      const int64_t place = i0 + r + keys - queries, row = place / layout.block;
      const uint64_t bits = layout.attended(first_head + h, row, j0, tile_keys);
      any |= bits;
      for (const int64_t end = std::min(count, r + (row + 1) * layout.block - place); r < end; ++r) rows[r] = bits;
    }
    return any != 0;
  }
};

/// `width` (D) rounded up to whole vectors.
template <class A> int64_t padded(int64_t width) { return round_up(width, lane_count<A>); }

/// Copies rows of `width` elements, times `factor`, to rows of padded<A>(width) elements with zeros at the end.
template <class A, class T>
[[gnu::always_inline]] inline void pack_rows(const T* in, int64_t stride, int64_t rows, int64_t width, A factor,
                                             A* out) {
  constexpr int w = lane_count<A>;
  for (int64_t i = 0; i < rows; ++i, in += stride) {
    int64_t d = 0;
    for (; d + w <= width; d += w, out += w) store(out, load(in + d, Full<A>()) * factor, Full<A>());
    if (d < width) store(out, load(in + d, int(width - d)) * factor, Full<A>()), out += w;
  }
}

/// Copies `count` keys of `width` elements, transposed, to `width` rows of tile_keys elements: out[d][j] is element d
/// of key j. Writes zeros for the keys from `count` to most - 1.
template <class A, class T>
void pack_transposed(const T* in, int64_t stride, int64_t count, int64_t width, A* out, int64_t limit = tile_keys) {
  constexpr int w = lanes<A>;
  for (int64_t j = 0; j < limit; j += w)
    for (int64_t d = 0; d < width; d += w) {
      Vector<A> square[w];
      const int lines = int(std::clamp<int64_t>(count - j, 0, w)), columns = int(std::min<int64_t>(w, width - d));
      const T* from = in + j * stride + d;
#pragma GCC unroll 16
      for (int r = 0; r < w; ++r)
        square[r] = r >= lines     ? Vector<A>{}
                    : columns == w ? read<A>(from + r * stride, w)
                                   : read<A>(from + r * stride, columns);
      transpose<A>(square);
#pragma GCC unroll 16
      for (int c = 0; c < w; ++c)
        if (c < columns) std::memcpy(out + (d + c) * tile_keys + j, &square[c], sizeof square[c]);
    }
}

/// Layout of the left factor of a product: element (i, p) is a[i * lda + p], or transposed a[p * lda + i].
enum class Left { plain, transposed };

/// c = keep * c + a b with one factor of `keep` per row, or c = a b if keep is null. `a` has `depth` columns; `c` and
/// `b` have `vectors` vectors in each row. The sums stay in registers.
template <class A, Left left, int rows, int vectors>
void register_product(int64_t depth, const A* __restrict a, int64_t lda, const A* __restrict b, int64_t ldb,
                      const A* keep, A* __restrict c, int64_t ldc) {
  constexpr int w = lanes<A>;
  Vector<A> sum[rows][vectors] = {};
#pragma GCC unroll unrolled_depth
  for (int64_t p = 0; p < depth; ++p, b += ldb) {
    Vector<A> line[vectors];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      std::memcpy(&line[j], b + j * w, sizeof line[j]);
      keep_in_register(line[j]);
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const A factor = left == Left::plain ? a[i * lda + p] : a[p * lda + i];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        // Keeps a single sum in one register. Without this line g++ may split it into several sums.
        if constexpr (rows * vectors == 1) keep_in_register(sum[i][j]);
        sum[i][j] += factor * line[j];
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      A* const to = c + i * ldc + j * w;
      Vector<A> v = sum[i][j], old;
      if (keep) std::memcpy(&old, to, sizeof old), v = old * keep[i] + v;
      std::memcpy(to, &v, sizeof v);
    }
}

/// Factors of 1 to pass as `keep` to register_product(), which then adds the product to c.
template <class A> inline constexpr A keep_all[8] = {1, 1, 1, 1, 1, 1, 1, 1};

/// register_product() for up to group_rows rows and any number of columns, which is rounded up to whole SIMD vectors.
template <class A, Left left>
void group_product(int64_t rows, int64_t columns, int64_t depth, const A* a, int64_t lda, const A* b, int64_t ldb,
                   const A* keep, A* c, int64_t ldc) {
  using Fn = void (*)(int64_t, const A*, int64_t, const A*, int64_t, const A*, A*, int64_t);
  static constexpr auto table = []<int... n>(std::integer_sequence<int, n...>) {
    return std::array<Fn, sizeof...(n)>{register_product<A, left, n / group_vectors + 1, n % group_vectors + 1>...};
  }
  (std::make_integer_sequence<int, group_rows * group_vectors>());
  constexpr int w = lanes<A>;
  for (int64_t j = 0; j < columns; j += group_vectors * w) {
    const int64_t vectors = std::min<int64_t>(group_vectors, (columns - j + w - 1) / w);
    table[size_t((rows - 1) * group_vectors + vectors - 1)](depth, a, lda, b + j, ldb, keep, c + j, ldc);
  }
}

/// Adds the mask to the first n scores of query i against keys j0, j0 + 1, ...
template <class A>
void add_mask(const AttentionPlan& plan, int64_t b, int64_t h, int64_t i, int64_t j0, int64_t n, A* scores) {
  const Dims& s = plan.mask_strides;
  const int64_t start = b * s[0] + h * s[1] + i * s[2] + j0 * s[3], step = s[3];
  if (plan.mask_dtype == DType::boolean) {
    const bool* mask = static_cast<const bool*>(plan.mask) + start;
    for (int64_t j = 0; j < n; ++j) scores[j] = mask[j * step] ? scores[j] : -infinity<A>;
  } else {
    dispatch<float, double, Half, BFloat16>(plan.mask_dtype, "attention", [&]<class M> {
      const M* mask = static_cast<const M*>(plan.mask) + start;
      for (int64_t j = 0; j < n; ++j) scores[j] += A(Acc<M>(mask[j * step]));
    });
  }
}

/// values: a row of query i, for the keys j0, j0 + 1, ... Sets those before the query's window to `hidden`.
template <class A> void hide_before(const AttentionPlan& plan, int64_t i, int64_t j0, A hidden, A* values) {
  if (const int64_t count = plan.first_key(i) - j0; count > 0) std::fill_n(values, std::min(count, tile_keys), hidden);
}

/// Sets the scores of keys whose bit in `attended` is 0 to -inf, several consecutive keys at a time.
template <class A> void hide(uint64_t attended, A* scores) {
  for (uint64_t hidden = ~attended; hidden != 0;) {
    const int from = std::countr_zero(hidden), count = std::countr_one(hidden >> from);
    std::fill_n(scores + from, count, -infinity<A>);
    hidden &= ~(BlockRows::ones(count) << from);
  }
}

/// Computes dropout factors for query i and keys j0, j0 + 1, ...: 0 or 1 / (1 - p). The random number of a score
/// depends on the score's position in (B, H, T, S), where H is plan.all_heads.
template <class A>
void dropout_row(const AttentionPlan& plan, int64_t b, int64_t h, int64_t i, int64_t j0, A* factors) {
  constexpr int counters = int(tile_keys) / 4 + 8;  // 64 numbers may need 17 counters; rounded up to whole vectors
  const uint64_t place = uint64_t(((b * plan.all_heads + plan.first_head + h) * plan.queries + i) * plan.keys + j0);
  alignas(64) uint64_t words[4][counters];
  // philox() for many counters side by side. GCC vectorises the products, because x0 to x3 are 64-bit integers.
  for (int n = 0; n < counters; ++n) {
    const uint64_t counter = place / 4 + uint64_t(n);
    uint64_t x0 = uint32_t(counter), x1 = counter >> 32, x2 = uint32_t(plan.key.stream), x3 = plan.key.stream >> 32;
    uint32_t k0 = uint32_t(plan.key.seed), k1 = uint32_t(plan.key.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const uint64_t a = uint64_t(0xD2511F53u) * uint32_t(x0), b = uint64_t(0xCD9E8D57u) * uint32_t(x2);
      x0 = (b >> 32) ^ x1 ^ k0;
      x1 = uint32_t(b);
      x2 = (a >> 32) ^ x3 ^ k1;
      x3 = uint32_t(a);
    }
    words[0][n] = uint32_t(x0), words[1][n] = uint32_t(x1), words[2][n] = uint32_t(x2), words[3][n] = uint32_t(x3);
  }
  const uint64_t threshold = uint64_t(std::ceil(plan.dropout * 0x1p32));  // rounded as in on_cpu::dropout()
  const A scale = plan.dropout < 1 ? A(1 / (1 - plan.dropout)) : A(0);
  A all[tile_keys + 4];  // begins with the first number of the first counter
  for (int n = 0; n < tile_keys / 4 + 1; ++n)
    for (int r = 0; r < 4; ++r) all[4 * n + r] = words[r][n] >= threshold ? scale : A(0);
  std::memcpy(factors, all + place % 4, tile_keys * sizeof(A));
}

/// Multiplies a row of tile_keys weights by its dropout factors.
template <class A> void drop(const AttentionPlan& plan, int64_t b, int64_t h, int64_t i, int64_t j0, A* weights) {
  alignas(64) A factors[tile_keys];
  dropout_row(plan, b, h, i, j0, factors);
  for (int j = 0; j < tile_keys; ++j) weights[j] *= factors[j];
}

/// Writes the first `width` elements of the padded row `in`, times `factor`, to `out`.
template <class A, class T> [[gnu::always_inline]] inline void write_row(const A* in, A factor, int64_t width, T* out) {
  constexpr int w = lane_count<A>;
  int64_t d = 0;
  for (; d + w <= width; d += w) store(out + d, load(in + d, Full<A>()) * factor, Full<A>());
  if (d < width) store(out + d, load(in + d, Full<A>()) * factor, int(width - d));
}

/// a and b hold n rows each, and each row takes an equal share of the lanes. The result holds all 2 n rows. A row of
/// the result is the elementwise maximum of the row's two halves.
template <class A, int n, int... l> Lanes<A> fold_rows(Lanes<A> a, Lanes<A> b, std::integer_sequence<int, l...>) {
  constexpr int w = lane_count<A>, part = w / (2 * n);  // lane l of the result belongs to row l / part
  const Lanes<A> low = __builtin_shufflevector(a, b, (l / part / n * w + l / part % n * 2 * part + l % part)...);
  const Lanes<A> high =
      __builtin_shufflevector(a, b, (l / part / n * w + l / part % n * 2 * part + l % part + part)...);
  return max_of<A>(low, high);
}

/// Returns the largest element of rows[r] in lane r * lane_count / 8, for vectors that fill one register each.
template <class A> Lanes<A> fold_eight(const Lanes<A> (&rows)[8]) {
  constexpr auto lanes = std::make_integer_sequence<int, lane_count<A>>();
  Lanes<A> two[4], four[2];
  for (int i = 0; i < 4; ++i) two[i] = fold_rows<A, 1>(rows[2 * i], rows[2 * i + 1], lanes);
  for (int i = 0; i < 2; ++i) four[i] = fold_rows<A, 2>(two[2 * i], two[2 * i + 1], lanes);
  Lanes<A> eight = fold_rows<A, 4>(four[0], four[1], lanes);
  if constexpr (lane_count<A> == 16) {
    eight =
        max_of<A>(eight, __builtin_shufflevector(eight, eight, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15));
  }
  return eight;
}

/// Returns a vector whose lane r * lane_count / 8 holds the largest element of rows[r], for each of the eight rows.
template <class A> Lanes<A> max_of_rows(const Lanes<A> (&rows)[8]) {
  if constexpr (requires { Lanes<A>::parts; }) {
    constexpr int w = lane_count<A>, side = lanes<A>;
    Vector<A> v[8];
    for (int r = 0; r < 8; ++r) {
      v[r] = rows[r].part[0];
      for (int i = 1; i < Lanes<A>::parts; ++i) v[r] = rows[r].part[i] > v[r] ? rows[r].part[i] : v[r];
    }
    A top[8], row_max[w];
    if constexpr (side == 8) {
      transpose<A>(v);
      for (int r = 1; r < 8; ++r) v[0] = v[r] > v[0] ? v[r] : v[0];
      std::memcpy(top, v, sizeof top);
    } else {
      for (int r = 0; r < 8; ++r) {
        top[r] = v[r][0];
        for (int l = 1; l < side; ++l) top[r] = v[r][l] > top[r] ? v[r][l] : top[r];
      }
    }
    for (int l = 0; l < w; ++l) row_max[l] = top[l * 8 / w];
    Lanes<A> all;
    copy_in(row_max, all);
    return all;
  } else {
    return fold_eight<A>(rows);
  }
}

/// Returns a vector that holds l in lane l: 0, 1, 2, ...
template <class A> Lanes<A> lane_numbers() {
  A numbers[lane_count<A>];
  for (int l = 0; l < lane_count<A>; ++l) numbers[l] = A(l);
  Lanes<A> v;
  copy_in(numbers, v);
  return v;
}

/// Runs fn(unit, scratch) for every unit from 0 to units - 1, each on the next free thread. scratch: memory for `count`
/// elements of A. work: number of multiplications of all units; if it is small, one thread runs them all.
template <class A, class Fn> void each_unit(int64_t units, int64_t count, double work, Fn&& fn) {
  if (units == 0) return;
  const int64_t slots = work < 1e5 ? 1 : std::min<int64_t>(units, get_threads());
  const int64_t size = round_up(count, 64);
  const Ref<Storage> storage = Storage::allocate(slots * size * int64_t(sizeof(A)), cpu);
  A* const scratch = reinterpret_cast<A*>(storage->data());
  std::atomic<int64_t> taken{0};
  parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot)
      for (int64_t unit = taken++; unit < units; unit = taken++) fn(unit, scratch + slot * size);
  });
}

}  // namespace lockstep::on_cpu
