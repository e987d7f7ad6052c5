// Matrix product in the classic layers, from the outside in:
//
//   columns of b    for some blocks of k: so many that they stay in L3. Packed by all threads, read by all
//   rows of a       for one block of k: a few slivers. Each thread packs those of its own part of c, or reads them
//   where they are a sliver        stays in L1 while it meets these columns, one tile of c each (gemm_tile.h)
//
// Packing also makes transposed and 16-bit operands free: they differ only in how they are copied. Where a thread's
// part begins does not matter for the bits, so the work is cut by the number of threads.
#include "tensor/cpu/gemm.h"

#include <algorithm>
#include <limits>

#include "tensor/cpu/gemm_few.h"
#include "tensor/cpu/gemm_tile.h"
#include "tensor/cpu/parallel.h"
#include "tensor/storage.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t depth_bytes = 2048;               // of a line of an a sliver: the sliver stays in L1
constexpr int64_t shared_bytes = int64_t(2) << 20;  // of packed b, for more than one block of k
constexpr int64_t columns_limit = 1536;             // of packed b, unless k is short
constexpr int64_t fork_work = 1 << 18;              // multiplications that are worth a thread
constexpr int64_t fork_reads = 1 << 15;             // numbers from memory that are

int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

/// A few hundred multiplications: no packing, no padding. Sums side by side: g++ makes one sum of products that it
/// rounds before it adds them, where the tuning of a processor says so, and then an element's bits would not be those
/// of a tile.
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

/// How a product is cut. Only `depth` matters for the bits.
template <class T> struct Blocking {
  static constexpr int64_t high = tile_rows<T>, wide = tile_columns<T>, size = sizeof(T);
  static constexpr int64_t rows = 8 * high;  // of a that a thread packs at a time, at most

  int64_t depth;            // of a block of k
  int64_t columns, packed;  // of b, and how much of k, that are packed at a time
  int64_t down, across;     // a grid of threads
  int64_t b_size, a_size;   // packed, in numbers

  Blocking(int64_t m, int64_t n, int64_t k, int64_t most_threads) {
    depth = block_depth(k);
    const int64_t limit = shared_bytes / size;
    columns = std::min(n, std::max<int64_t>(columns_limit, limit / k / wide * wide));
    packed = std::min(ceil_div(k, depth), std::max<int64_t>(1, limit / (columns * depth))) * depth;
    // A sliver is packed again for each column of the grid, in about a tile's time: few columns win where they balance
    // as well.
    const int64_t threads = std::clamp<int64_t>(m * n * k / fork_work, 1, most_threads);
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t s = 1; s <= threads; ++s) {
      if (threads % s != 0) continue;
      const int64_t cost = ceil_div(m, threads / s * high) * (ceil_div(ceil_div(columns, wide), s) + 1);
      if (cost < least) least = cost, across = s, down = threads / s;
    }
    b_size = ceil_div(columns, wide) * wide * packed;
    a_size = rows * depth + 64;
  }
  static int64_t block_depth(int64_t k) { return ceil_div(k, ceil_div(k, depth_bytes / size)); }
  int64_t scratch() const { return b_size + down * across * a_size; }
};

/// One product; the members are what its pieces share.
template <class T, class In> struct Product {
  static constexpr int64_t high = tile_rows<T>, wide = tile_columns<T>;
  static constexpr int64_t pack_columns = 8 * wide;

  int64_t m, n, k, ldc;
  T alpha, beta;
  MatrixView<In> a, b;
  T* c;
  const Finish& finish;
  Blocking<T> plan;
  T* packed_b;  // block of k after block of k, slivers of `wide` columns in each; behind them each thread's rows of a

  void operator()() const {
    for (int64_t j = 0; j < n; j += plan.columns)
      for (int64_t p = 0; p < k; p += plan.packed) {
        const int64_t columns = std::min(plan.columns, n - j), slivers = ceil_div(columns, wide),
                      end = std::min(k, p + plan.packed);
        pack_b(j, columns, p, end);
        parallel_for(plan.down * plan.across, 1, [&](int64_t first, int64_t last) {
          for (int64_t t = first; t < last; ++t) {
            const int64_t y = t / plan.across, x = t % plan.across;
            multiply(m * y / plan.down, m * (y + 1) / plan.down, j, columns, slivers * x / plan.across * wide,
                     std::min(columns, slivers * (x + 1) / plan.across * wide), p, end,
                     packed_b + plan.b_size + t * plan.a_size);
          }
        });
      }
  }

  /// Packs columns [j, j + columns) of b's rows [p0, p1).
  void pack_b(int64_t j, int64_t columns, int64_t p0, int64_t p1) const {
    const int64_t padded = ceil_div(columns, wide) * wide, pieces = ceil_div(columns, pack_columns),
                  units = pieces * ceil_div(p1 - p0, plan.depth);
    parallel_for(units, plan.down * plan.across == 1 ? units : 1, [&](int64_t first, int64_t last) {
      for (int64_t unit = first; unit < last; ++unit) {
        const int64_t p = p0 + unit / pieces * plan.depth, depth = std::min(plan.depth, p1 - p),
                      x = unit % pieces * pack_columns;
        pack<wide>(b.at(p, j + x).data, b.col, b.row, std::min(pack_columns, columns - x), depth,
                   packed_b + (p - p0) * padded + x * depth);
      }
    });
  }

  /// What the packed rows [p0, p1) of b, in its columns j + [x0, x1) of `columns`, add to c's rows [i0, i1).
  void multiply(int64_t i0, int64_t i1, int64_t j, int64_t columns, int64_t x0, int64_t x1, int64_t p0, int64_t p1,
                T* packed_a) const {
    const int64_t rows =
        a.col == 1 ? high : plan.rows;  // where rows of a lie apart, a sliver at a time goes from memory to L1
    for (int64_t i = i0; i < i1; i += rows)
      for (int64_t p = p0; p < p1; p += plan.depth) {
        const int64_t depth = std::min(plan.depth, p1 - p), end = std::min(i1, i + rows);
        if (!in_place()) pack<high>(a.at(i, p).data, a.row, a.col, end - i, depth, packed_a);
        for (int64_t y = i; y < end; y += high) {
          const int64_t height = std::min(high, end - y);
          for (int64_t x = x0; x < x1; x += wide)
            one_tile(depth, lines(y, p, packed_a + (y - i) * depth),
                     packed_b + (p - p0) * ceil_div(columns, wide) * wide + x * depth, p == 0 ? beta : T(1),
                     c + y * ldc + j + x, height, std::min(wide, x1 - x));
          if (p + depth == k && finish) finish(y, j + x0, height, x1 - x0);
        }
      }
  }

  /// Whether rows of a are read where they are.
  bool in_place() const { return std::is_same_v<T, In> && reads_rows<T> && a.col == 1; }
  const T* lines(int64_t y, int64_t p, const T* sliver) const {
    if constexpr (std::is_same_v<T, In>) return in_place() ? a.at(y, p).data : sliver;
    return sliver;
  }

  void one_tile(int64_t depth, const T* lines_a, const T* sliver_b, T keep, T* to, int64_t rows,
                int64_t columns) const {
    const Tile<T> run = (in_place() ? tiles<T, !reads_rows<T>> : tiles<T, true>)[size_t(rows - 1)];
    if (columns == wide) return run(depth, lines_a, a.row, sliver_b, alpha, keep, to, ldc);
    T whole[high * wide] = {};  // the last columns: by way of a whole tile
    if (keep != 0)
      for (int64_t i = 0; i < rows; ++i) std::copy_n(to + i * ldc, columns, whole + i * wide);
    run(depth, lines_a, a.row, sliver_b, alpha, keep, whole, wide);
    for (int64_t i = 0; i < rows; ++i) std::copy_n(whole + i * wide, columns, to + i * ldc);
  }
};

bool is_tiny(int64_t m, int64_t n, int64_t k) { return m * n * k <= 256; }  // k = 0 as well

/// m <= unpacked_rows and b is read in lines. `turned`: c is the transpose of the result, and `finish` is told so.
template <class T, class In>
void few_gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
              bool turned, const Finish& finish, T* scratch) {
  constexpr int64_t piece = 512;  // columns that are finished at a time
  FewRows<T, In> rows{.k = k, .depth = Blocking<T>::block_depth(k), .alpha = alpha, .beta = beta, .b = b, .c = c};
  rows.c_row = turned ? 1 : ldc, rows.c_col = turned ? ldc : 1;
  Ref<Storage> storage;
  const auto copy_rows = [&] {
    if (!scratch) storage = Storage::allocate(m * k * int64_t(sizeof(T)), cpu);
    T* const to = scratch ? scratch : reinterpret_cast<T*>(storage->data());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < k; ++p) to[i * k + p] = T(a.data[i * a.row + p * a.col]);
    rows.x = to, rows.x_row = k;
  };
  if constexpr (std::is_same_v<T, In>) {
    if (a.col == 1) rows.x = a.data, rows.x_row = a.row;
    else copy_rows();
  } else {
    copy_rows();
  }
  const int64_t units = ceil_div(n, rows.unit), grain = std::max<int64_t>(1, fork_reads / (rows.unit * k));
  parallel_for(units, scratch ? units : grain, [&](int64_t first, int64_t last) {
    const int64_t end = std::min(n, last * rows.unit);
    for (int64_t j = first * rows.unit; j < end; j += piece) {
      const int64_t columns = std::min(piece, end - j);
      rows(m, j, j + columns);
      if (finish) turned ? finish(j, 0, columns, m) : finish(0, j, m, columns);
    }
  });
}

}  // namespace

template <class T> int64_t gemm_scratch(int64_t m, int64_t n, int64_t k) {
  if (is_tiny(m, n, k)) return 0;
  return std::max(Blocking<T>(m, n, k, 1).scratch(), std::min<int64_t>({m, n, unpacked_rows}) * k);
}

template <class T, class In>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<In> a, MatrixView<In> b, T beta, T* c, int64_t ldc,
          const Finish& finish, T* scratch) {
  if (is_tiny(m, n, k)) {
    tiny_gemm(m, n, k, alpha, a, b, beta, c, ldc);
    if (finish) finish(0, 0, m, n);
    return;
  }
  if (m <= (b.row == 1 ? unpacked_rows : few_rows) && FewRows<T, In>::reads(b))
    return few_gemm(m, n, k, alpha, a, b, beta, c, ldc, false, finish, scratch);
  if (n <= few_rows && FewRows<T, In>::reads(a))  // the transposed product
    return few_gemm<T, In>(n, m, k, alpha, {b.data, b.col, b.row}, {a.data, a.col, a.row}, beta, c, ldc, true, finish,
                           scratch);
  const Blocking<T> plan(m, n, k, scratch ? 1 : get_threads());
  Ref<Storage> storage;
  if (!scratch) {
    storage = Storage::allocate(plan.scratch() * plan.size, cpu);
    scratch = reinterpret_cast<T*>(storage->data());
  }
  Product<T, In>{m, n, k, ldc, alpha, beta, a, b, c, finish, plan, scratch}();
}

template int64_t gemm_scratch<float>(int64_t, int64_t, int64_t);
template int64_t gemm_scratch<double>(int64_t, int64_t, int64_t);
#define LOCKSTEP_GEMM(T, In)                                                                              \
  template void gemm<T, In>(int64_t, int64_t, int64_t, T, MatrixView<In>, MatrixView<In>, T, T*, int64_t, \
                            const Finish&, T*);
LOCKSTEP_GEMM(float, float)
LOCKSTEP_GEMM(float, Half)
LOCKSTEP_GEMM(float, BFloat16)
LOCKSTEP_GEMM(double, double)

}  // namespace lockstep::on_cpu
