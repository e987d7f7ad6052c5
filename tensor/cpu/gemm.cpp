// Matrix product c = a b with the usual blocking for caches. This shows the loops, the outermost first:
//
//   columns of b    for one or more blocks of k, as many as stay in L3. The threads share the work of packing them, and
//                   all threads read all of them
//   rows of a       a few strips of rows (a strip has the height of a tile), for one block of k. Each thread packs
//                   the strips for its own part of c, or reads the rows in place
//   a strip of a    stays in L1 while it is multiplied by the columns of b, one tile of c at a time (gemm_tile.h)
//
// Packing costs the same for transposed and 16-bit operands. The bits of c do not depend on where a thread's part
// begins, so the work can be divided among any number of threads. Numbers and Pairs are the two kinds of operands: an
// element of a packed strip holds one number, or a pair of neighbours along k (`together` = 1 or 2).
#include "tensor/cpu/gemm.h"

#include <algorithm>
#include <limits>

#include "tensor/bf16_products.h"
#include "tensor/cpu/gemm_few.h"
#include "tensor/cpu/gemm_pairs.h"
#include "tensor/cpu/gemm_tile.h"
#include "tensor/cpu/parallel.h"
#include "tensor/storage.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t depth_bytes = 2048;               // per row of a packed strip of a: it stays in L1
constexpr int64_t shared_bytes = int64_t(2) << 20;  // limit for packed b, if it covers several blocks of k
constexpr int64_t columns_limit = 1536;             // columns of packed b, unless k is short
constexpr int64_t fork_work = 1 << 18;              // multiplications that justify a thread
constexpr int64_t fork_reads = 1 << 15;             // numbers read from memory that justify a thread

/// Computes a product of at most 256 multiplications (is_tiny()) without packing or padding. It keeps 16 sums at once:
/// for a single sum, g++ for some processors rounds each product before it adds it, and the bits would differ from
/// those of a larger product.
template <class T, class In>
void tiny_gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c,
               int64_t ldc) {
  constexpr int64_t wide = 16;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; j += wide) {
      const int64_t columns = std::min(wide, n - j);
      T sum[wide] = {};
      for (int64_t p = 0; p < k; ++p)
        for (int64_t l = 0; l < columns; ++l)
          sum[l] += T(a.data[i * a.row + p * a.col]) * T(b.data[p * b.row + (j + l) * b.col]);
      for (int64_t l = 0; l < columns; ++l) {
        T& to = c[i * ldc + j + l];
        to = add_scaled<T>(sum[l], alpha, beta, to);
      }
    }
}

/// Operands whose packed elements are f32 or f64. 16-bit numbers are converted to f32 when they are packed.
template <class T, class In> struct Numbers {
  using Sum = T;
  using Number = In;
  using Packed = T;
  using Few = FewRows<T, In>;
  static constexpr int64_t high = tile_rows<T>, wide = tile_columns<T>, together = 1;

  static void pack_a(const In* in, int64_t apart, int64_t step, int64_t count, int64_t numbers, T* out) {
    pack<high>(in, apart, step, count, numbers, out);
  }
  static void pack_b(const In* in, int64_t apart, int64_t step, int64_t count, int64_t numbers, T* out) {
    pack<wide>(in, apart, step, count, numbers, out);
  }
  /// Returns the rows of `a` if tile() can read them where they are, without packing; else null.
  static const T* in_place(const MatrixView<In>& a) {
    if constexpr (std::is_same_v<T, In>) return reads_rows<T> && a.col == 1 ? a.data : nullptr;
    return nullptr;
  }
  static void tile(int64_t rows, bool packed, int64_t depth, const T* a, int64_t lda, const T* b, T alpha, T beta, T* c,
                   int64_t ldc) {
    (packed ? tiles<T, true> : tiles<T, !reads_rows<T>>)[size_t(rows - 1)](depth, a, lda, b, alpha, beta, c, ldc);
  }
  static const T* few_rows_of(const MatrixView<In>& a) {
    if constexpr (std::is_same_v<T, In>) return a.col == 1 ? a.data : nullptr;
    return nullptr;
  }
  static T packed_at(const MatrixView<In>& a, int64_t i, int64_t p, int64_t) {
    return T(a.data[i * a.row + p * a.col]);
  }
};

#if defined(LOCKSTEP_PAIRS)
/// Operands whose packed elements are pairs of bf16.
struct Pairs {
  using Sum = float;
  using Number = BFloat16;
  using Packed = uint32_t;
  using Few = FewPairs;
  static constexpr int64_t high = pair_rows, wide = pair_columns, together = 2;

  static void pack_a(const BFloat16* in, int64_t apart, int64_t step, int64_t count, int64_t numbers, uint32_t* out) {
    pack_pairs<pair_rows>(in, apart, step, count, numbers, out);
  }
  static void pack_b(const BFloat16* in, int64_t apart, int64_t step, int64_t count, int64_t numbers, uint32_t* out) {
    pack_pairs<pair_columns>(in, apart, step, count, numbers, out);
  }
  static const uint32_t* in_place(const MatrixView<BFloat16>&) { return nullptr; }
  static void tile(int64_t rows, bool, int64_t depth, const uint32_t* a, int64_t, const uint32_t* b, float alpha,
                   float beta, float* c, int64_t ldc) {
    pair_tiles[size_t(rows - 1)](depth, a, b, alpha, beta, c, ldc);
  }
  static const uint32_t* few_rows_of(const MatrixView<BFloat16>&) { return nullptr; }
  static uint32_t packed_at(const MatrixView<BFloat16>& a, int64_t i, int64_t p, int64_t k) {
    const BFloat16* const pair = a.data + i * a.row + 2 * p * a.col;
    return pair[0].bits | (2 * p + 1 < k ? uint32_t(pair[a.col].bits) << 16 : 0);
  }
};
#endif

/// The block sizes of a product and the grid of its threads. Only `depth` affects the bits of the result.
template <class K> struct Blocking {
  static constexpr int64_t high = K::high, wide = K::wide, size = sizeof(typename K::Packed);
  static constexpr int64_t rows = 8 * high;  // rows of a that a thread packs at a time, at most
  static_assert(size == sizeof(typename K::Sum));

  int64_t depth;            // elements of k in a block; k is counted in elements of a packed strip
  int64_t columns, packed;  // columns of b, and depth of k, that are packed at a time
  // True if c is never stored as a whole: each thread keeps a few rows of the result in its own buffer.
  bool strips;
  int64_t down = 1, across = 1;        // the grid of threads
  int64_t b_size, a_size, strip_size;  // buffer sizes, in numbers

  Blocking(int64_t m, int64_t n, int64_t numbers, int64_t max_threads, bool with_c) {
    const int64_t k = ceil_div(numbers, K::together);
    depth = block_depth(k);
    const int64_t limit = shared_bytes / size;
    columns = std::min(n, std::max<int64_t>(columns_limit, limit / k / wide * wide));
    packed = std::min(ceil_div(k, depth), std::max<int64_t>(1, limit / (columns * depth))) * depth;
    strips = !with_c && (packed >= k || k * std::min<int64_t>(n, 16 * wide) <= limit);
    if (strips && packed < k) packed = ceil_div(k, depth) * depth, columns = std::min(n, limit / k / wide * wide);
    // Each column of the grid packs all rows of `a` itself; packing a strip takes about as long as computing a tile.
    // So among grids that balance the work equally well, the loop chooses the one with the fewest columns.
    const int64_t threads = std::clamp<int64_t>(m * n * k / fork_work, 1, max_threads);
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t s = 1; s <= threads; ++s) {
      if (threads % s != 0) continue;
      const int64_t cost = ceil_div(m, threads / s * high) * (ceil_div(ceil_div(columns, wide), s) + 1);
      if (cost < least) least = cost, across = s, down = threads / s;
    }
    b_size = ceil_div(columns, wide) * wide * packed;
    a_size = rows * depth + 64;
    strip_size = strips ? rows * ceil_div(ceil_div(columns, wide), across) * wide : 0;
  }
  static int64_t block_depth(int64_t k) { return ceil_div(k, ceil_div(k, depth_bytes / size)); }
  int64_t scratch() const { return b_size + down * across * (a_size + strip_size); }
};

/// One matrix product. The threads that compute parts of the result share this object.
template <class K> struct Product {
  using T = typename K::Sum;
  using In = typename K::Number;
  using Packed = typename K::Packed;
  static constexpr int64_t high = K::high, wide = K::wide, pack_columns = 8 * wide, together = K::together;

  int64_t m, n, k, ldc;
  T alpha, beta;
  MatrixView<In> a, b;
  T* c;  // the result; null if plan.strips is set
  const Finish<T>& finish;
  Blocking<K> plan;
  // The packed columns of b (for each block of k, strips of `wide` columns), then the buffers of the threads.
  Packed* packed_b;

  int64_t end() const { return ceil_div(k, together); }  // length of k in packed elements

  void operator()() const {
    for (int64_t j = 0; j < n; j += plan.columns)
      for (int64_t p = 0; p < end(); p += plan.packed) {
        const int64_t columns = std::min(plan.columns, n - j), slivers = ceil_div(columns, wide),
                      last_p = std::min(end(), p + plan.packed);
        pack_b(j, columns, p, last_p);
        parallel_for(plan.down * plan.across, 1, [&](int64_t first, int64_t last) {
          for (int64_t t = first; t < last; ++t) {
            const int64_t y = t / plan.across, x = t % plan.across;
            multiply(m * y / plan.down, m * (y + 1) / plan.down, j, columns, slivers * x / plan.across * wide,
                     std::min(columns, slivers * (x + 1) / plan.across * wide), p, last_p,
                     packed_b + plan.b_size + t * (plan.a_size + plan.strip_size));
          }
        });
      }
  }

  /// The count of numbers along k in the packed elements [p, p + depth). An element holds `together` numbers; the last
  /// element of k may hold fewer.
  int64_t numbers(int64_t p, int64_t depth) const { return std::min(k - p * together, depth * together); }

  /// Packs rows [p0, p1) of b in columns [j, j + columns).
  void pack_b(int64_t j, int64_t columns, int64_t p0, int64_t p1) const {
    const int64_t padded = ceil_div(columns, wide) * wide, pieces = ceil_div(columns, pack_columns),
                  units = pieces * ceil_div(p1 - p0, plan.depth);
    parallel_for(units, plan.down * plan.across == 1 ? units : 1, [&](int64_t first, int64_t last) {
      for (int64_t unit = first; unit < last; ++unit) {
        const int64_t p = p0 + unit / pieces * plan.depth, depth = std::min(plan.depth, p1 - p),
                      x = unit % pieces * pack_columns;
        K::pack_b(b.at(p * together, j + x).data, b.col, b.row, std::min(pack_columns, columns - x), numbers(p, depth),
                  packed_b + (p - p0) * padded + x * depth);
      }
    });
  }

  /// Multiplies rows [i0, i1) of a by the packed rows [p0, p1) of b and adds the result to columns j + [x0, x1) of c.
  void multiply(int64_t i0, int64_t i1, int64_t j, int64_t columns, int64_t x0, int64_t x1, int64_t p0, int64_t p1,
                Packed* packed_a) const {
    // Packs `high` rows of `a` (the height of a tile) at a time if the elements of a row are contiguous, otherwise
    // plan.rows.
    const int64_t rows = a.col == 1 ? high : plan.rows, ld = c ? ldc : ceil_div(x1 - x0, wide) * wide;
    const bool in_place = K::in_place(a);
    T* const strip = reinterpret_cast<T*>(packed_a + plan.a_size);
    for (int64_t i = i0; i < i1; i += rows)
      for (int64_t p = p0; p < p1; p += plan.depth) {
        const int64_t depth = std::min(plan.depth, p1 - p), below = std::min(i1, i + rows);
        if (!in_place) K::pack_a(a.at(i, p * together).data, a.row, a.col, below - i, numbers(p, depth), packed_a);
        for (int64_t y = i; y < below; y += high) {
          const int64_t height = std::min(high, below - y);
          T* const to = c ? c + y * ldc + j + x0 : strip + (y - i) * ld;
          for (int64_t x = x0; x < x1; x += wide)
            one_tile(height, c ? std::min(wide, x1 - x) : wide, depth,
                     in_place ? K::in_place(a.at(y, p * together)) : packed_a + (y - i) * depth, !in_place,
                     packed_b + (p - p0) * ceil_div(columns, wide) * wide + x * depth, p == 0 ? beta : T(1),
                     to + x - x0, ld);
          if (p + depth == end() && finish) finish(y, j + x0, height, x1 - x0, to, ld);
        }
      }
  }

  void one_tile(int64_t rows, int64_t columns, int64_t depth, const Packed* lines_a, bool packed,
                const Packed* sliver_b, T keep, T* to, int64_t ld) const {
    if (columns == wide) return K::tile(rows, packed, depth, lines_a, a.row, sliver_b, alpha, keep, to, ld);
    T full[high * wide] = {};  // few columns are left: computes a whole tile here
    if (keep != 0)
      for (int64_t i = 0; i < rows; ++i) std::copy_n(to + i * ld, columns, full + i * wide);
    K::tile(rows, packed, depth, lines_a, a.row, sliver_b, alpha, keep, full, wide);
    for (int64_t i = 0; i < rows; ++i) std::copy_n(full + i * wide, columns, to + i * ld);
  }
};

bool is_tiny(int64_t m, int64_t n, int64_t k) { return m * n * k <= 256; }  // true for k = 0

/// A product of m <= unpacked_rows rows, where b is read without packing. If `turned` is true, c and `finish` receive
/// the transpose of the result. `rows` is a buffer for m x k elements of `a`.
template <class K, class T = typename K::Sum, class In = typename K::Number>
void few_gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
              bool turned, const Finish<T>& finish, typename K::Packed* rows, bool single_thread) {
  constexpr int64_t piece = 512;  // columns per call of finish
  const int64_t length = ceil_div(k, K::together);
  typename K::Few few{.k = k, .depth = Blocking<K>::block_depth(length), .alpha = alpha, .beta = beta, .b = b, .c = c};
  few.c_row = turned ? 1 : ldc, few.c_col = turned ? ldc : 1;
  few.x = K::few_rows_of(a), few.x_row = a.row;
  if (!few.x) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < length; ++p) rows[i * length + p] = K::packed_at(a, i, p, k);
    few.x = rows, few.x_row = length;
  }
  const int64_t units = ceil_div(n, few.unit), grain = std::max<int64_t>(1, fork_reads / (few.unit * k));
  parallel_for(units, single_thread ? units : grain, [&](int64_t first, int64_t last) {
    const int64_t end = std::min(n, last * few.unit);
    for (int64_t j = first * few.unit; j < end; j += piece) {
      const int64_t columns = std::min(piece, end - j);
      few(m, j, j + columns);
      if (finish) turned ? finish(j, 0, columns, m, c + j * ldc, ldc) : finish(0, j, m, columns, c + j, ldc);
    }
  });
}

template <class K> int64_t scratch_of(int64_t m, int64_t n, int64_t k, bool with_c) {
  const int64_t own_c = with_c ? 0 : m * n;
  if (k == 0 || (K::together == 1 && is_tiny(m, n, k))) return own_c;
  const Blocking<K> plan(m, n, k, 1, with_c);
  if (std::min(m, n) > unpacked_rows) return plan.scratch() + (plan.strips ? 0 : own_c);
  return std::max(plan.scratch(), std::min<int64_t>({m, n, unpacked_rows}) * k) + own_c;
}

template <class K, class T = typename K::Sum, class In = typename K::Number>
void run(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
         const Finish<T>& finish, T* scratch) {
  Ref<Storage> storage[2];
  const bool single_thread = scratch;
  const auto take = [&](int64_t size, int slot) {
    if (single_thread) return std::exchange(scratch, scratch + size);
    storage[slot] = Storage::allocate(size * int64_t(sizeof(T)), cpu);
    return reinterpret_cast<T*>(storage[slot]->data());
  };
  using Packed = typename K::Packed;
  const auto packed = [&](int64_t size) { return reinterpret_cast<Packed*>(take(size, 1)); };
  const bool few = m <= (b.row == 1 ? unpacked_rows : few_rows) && K::Few::reads(b),
             few_turned = !few && n <= few_rows && K::Few::reads(a),
             tiny = k == 0 || (K::together == 1 && is_tiny(m, n, k));
  if (tiny || few || few_turned) {
    if (!c) c = take(m * n, 0), ldc = n;
    if (tiny) {
      tiny_gemm(m, n, k, alpha, a, b, beta, c, ldc);
      if (finish) finish(0, 0, m, n, c, ldc);
    } else if (few) {
      few_gemm<K>(m, n, k, alpha, a, b, beta, c, ldc, false, finish, K::few_rows_of(a) ? nullptr : packed(m * k),
                  single_thread);
    } else {  // the transposed product
      const MatrixView<In> rows{b.data, b.col, b.row}, columns{a.data, a.col, a.row};
      few_gemm<K>(n, m, k, alpha, rows, columns, beta, c, ldc, true, finish,
                  K::few_rows_of(rows) ? nullptr : packed(n * k), single_thread);
    }
    return;
  }
  const Blocking<K> plan(m, n, k, single_thread ? 1 : get_threads(), c != nullptr);
  if (!c && !plan.strips) c = take(m * n, 0), ldc = n;
  Product<K>{m, n, k, ldc, alpha, beta, a, b, c, finish, plan, packed(plan.scratch())}();
}

/// Calls fn with the kind of operands for products of type In: Pairs for bf16 if the processor multiplies pairs of
/// bf16, otherwise Numbers.
template <class T, class In> auto with_kind(const auto& fn) {
#if defined(LOCKSTEP_PAIRS)
  if constexpr (std::is_same_v<In, BFloat16>)
    if (bf16_products() == Bf16Products::avx512_bf16) return fn.template operator()<Pairs>();
#endif
  return fn.template operator()<Numbers<T, In>>();
}

}  // namespace

template <class T, class In> int64_t gemm_scratch(int64_t m, int64_t n, int64_t k, bool with_c) {
  return with_kind<T, In>([&]<class K>() { return scratch_of<K>(m, n, k, with_c); });
}

template <class T, class In>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
          const Finish<T>& finish, T* scratch) {
  with_kind<T, In>([&]<class K>() { run<K>(m, n, k, alpha, a, b, beta, c, ldc, finish, scratch); });
}

#define LOCKSTEP_GEMM(T, In)                                                                              \
  template int64_t gemm_scratch<T, In>(int64_t, int64_t, int64_t, bool);                                  \
  template void gemm<T, In>(int64_t, int64_t, int64_t, T, MatrixView<In>, MatrixView<In>, T, T*, int64_t, \
                            const Finish<T>&, T*);
LOCKSTEP_GEMM(float, float)
LOCKSTEP_GEMM(float, Half)
LOCKSTEP_GEMM(float, BFloat16)
LOCKSTEP_GEMM(double, double)

}  // namespace lockstep::on_cpu
