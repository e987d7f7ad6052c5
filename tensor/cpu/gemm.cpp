// Matrix product in the classic three layers. A block of b (depth x NR-wide slivers) and a block of a (8-high slivers)
// are packed so that the innermost loop reads both in order; that loop keeps an 8 x NR tile of c in 24 registers:
//
//        b sliver  NR = 3 vectors
//        +---------+
//   a    | tile of |      for p in depth: tile += a[p][0..8) * b[p][0..NR)
//   8 x  | c       |
//        +---------+
//
// Packing also makes transposed operands free: they differ only in how they are copied.
#include "tensor/cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"

#if defined(LOCKSTEP_WITH_ONEDNN)
#include <oneapi/dnnl/dnnl.h>

#include "tensor/cpu/single_thread.h"
#endif

namespace lockstep::on_cpu {
namespace {

constexpr int tile_rows = 8, tile_vectors = 3;
constexpr int64_t depth_limit = 384;   // of a packed block: an a sliver stays in L1, a block of b in L2
constexpr int64_t rows_limit = 96;     // of a packed block of a
constexpr int64_t columns_limit = 384;  // of a packed block of b

template <class T> inline constexpr int tile_columns = tile_vectors * lane_count<T>;

template <class T, int s, int... l>
void swap_lanes(Lanes<T>& a, Lanes<T>& b, std::integer_sequence<int, l...>) {
  constexpr int w = lane_count<T>;
  const Lanes<T> low = __builtin_shufflevector(a, b, (l & s ? w + l - s : l)...);
  b = __builtin_shufflevector(a, b, (l & s ? w + l : l + s)...);
  a = low;
}

/// Transposes a square of lane_count rows in registers: swaps halves, then quarters, ...
template <class T, int s = lane_count<T> / 2>
[[gnu::always_inline]] inline void transpose(Lanes<T>* rows) {
  constexpr int w = lane_count<T>;
#pragma GCC unroll 16
  for (int i = 0; i < w; ++i)
    if (!(i & s)) swap_lanes<T, s>(rows[i], rows[i + s], std::make_integer_sequence<int, w>());
  if constexpr (s > 1) transpose<T, s / 2>(rows);
}

/// Copies `count` lines of length `depth` into slivers of `width` lines: out[line / width][p][line % width], padded
/// with zeros. Element p of a line lies at line_start[p * step]; lines are `line` apart.
template <class T, int width>
void pack(const T* in, int64_t line, int64_t step, int64_t count, int64_t depth, T* out) {
  constexpr int w = lane_count<T>, per_square = w / std::min(w, width);
  if (step == 1 && line != 1) {
    for (int64_t i = 0; i < count; i += w) {
      const int lines = int(std::min<int64_t>(w, count - i));
      for (int64_t p = 0; p < depth; p += w) {
        Lanes<T> square[w];
        const int columns = int(std::min<int64_t>(w, depth - p));
        if (columns == w) {
          for (int r = 0; r < w; ++r) square[r] = r < lines ? load(in + (i + r) * line + p, Full<T>()) : Lanes<T>{};
        } else {
          for (int r = 0; r < w; ++r) square[r] = r < lines ? load(in + (i + r) * line + p, columns) : Lanes<T>{};
        }
        transpose<T>(square);
        // A square holds the start of per_square slivers, or a part of one.
        for (int q = 0; q < per_square; ++q) {
          const int64_t first = i + q * width;
          T* sliver = out + first / width * width * depth + first % width;
          if (first < (count + width - 1) / width * width)
            for (int c = 0; c < columns; ++c)
              std::memcpy(sliver + (p + c) * width, (const T*)&square[c] + q * width, sizeof(T) * std::min(w, width));
        }
      }
      // The rest of a wide sliver's lines, when the last square does not reach its end.
      if (width > w && i + w >= count)
        for (int64_t rest = i + w; rest % width != 0; rest += w)
          for (int64_t p = 0; p < depth; ++p)
            std::memset(out + rest / width * width * depth + p * width + rest % width, 0, sizeof(T) * w);
    }
    return;
  }
  for (int64_t i = 0; i < count; i += width, out += width * depth) {
    const int lines = int(std::min<int64_t>(width, count - i));
    const T* from = in + i * line;
    if (line == 1 && lines == width) {
      for (int64_t p = 0; p < depth; ++p) std::memcpy(out + p * width, from + p * step, sizeof(T) * width);
    } else {
      for (int64_t p = 0; p < depth; ++p) {
        for (int r = 0; r < lines; ++r) out[p * width + r] = from[r * line + p * step];
        for (int r = lines; r < width; ++r) out[p * width + r] = 0;
      }
    }
  }
}

/// c (rows x columns, at most one tile) = alpha * a sliver * b sliver + beta * c. Computes `vectors` vectors of columns.
template <class T, int vectors>
void tile(int64_t depth, const T* __restrict a, const T* __restrict b, T alpha, T beta, T* __restrict c, int64_t ldc,
          int rows, int columns) {
  constexpr int w = lane_count<T>;
  Lanes<T> sum[tile_rows][vectors] = {};
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(c + i * ldc + j * w, 1);
  for (int64_t p = 0; p < depth; ++p, a += tile_rows, b += tile_vectors * w) {
    Lanes<T> line[vectors];
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(b + 8 * tile_vectors * w + j * w);
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) line[j] = load(b + j * w, Full<T>());
#pragma GCC unroll 8
    for (int i = 0; i < tile_rows; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i] * line[j];
  }
  if (rows == tile_rows && columns == vectors * w) {
#pragma GCC unroll 8
    for (int i = 0; i < tile_rows; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < vectors; ++j) {
        T* to = c + i * ldc + j * w;
        store(to, beta == 0 ? alpha * sum[i][j] : alpha * sum[i][j] + beta * load(to, Full<T>()), Full<T>());
      }
    return;
  }
  T spill[tile_rows][vectors * w];
  std::memcpy(spill, sum, sizeof spill);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j)
      c[i * ldc + j] = beta == 0 ? alpha * spill[i][j] : alpha * spill[i][j] + beta * c[i * ldc + j];
}

template <class T>
T* scratch(int64_t count) {
  struct Buffer {
    T* data = nullptr;
    int64_t size = 0;
    ~Buffer() { ::operator delete[](data, std::align_val_t(64)); }
  };
  thread_local Buffer buffer;
  if (buffer.size < count) {
    ::operator delete[](buffer.data, std::align_val_t(64));
    buffer.data = static_cast<T*>(::operator new[](sizeof(T) * count, std::align_val_t(64)));
    buffer.size = count;
  }
  return buffer.data;
}

#if defined(LOCKSTEP_WITH_ONEDNN)
/// oneDNN chooses its kernel for the processor at run time. It must not fork: the threads are ours to place.
bool sgemm(int64_t m, int64_t n, int64_t k, float alpha, MatrixView<float> a, MatrixView<float> b, float beta, float* c,
           int64_t ldc) {
  if ((a.row != 1 && a.col != 1) || (b.row != 1 && b.col != 1)) return false;
  const bool ta = a.col != 1, tb = b.col != 1;
  const int64_t lda = std::max(ta ? a.col : a.row, ta ? m : k), ldb = std::max(tb ? b.col : b.row, tb ? k : n);
  // Weight gradients: a's columns are rows of memory, one page or more each, and its kernel for panels that are not large
  // reads so many of them at a time that the pages' addresses fall out of the TLB. Pieces of the sum are a quarter faster.
  const int64_t piece = ta && !tb && 1.0 / double(m) + 1.0 / double(n) > 0.00196 && k > 2 * 256 ? 256 : k;
  const SingleThread single;
  for (int64_t p = 0; p < k; p += piece)
    if (dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, std::min(piece, k - p), alpha, a.at(0, p).data, lda, b.at(p, 0).data, ldb,
                   p == 0 ? beta : 1.f, c, ldc) != dnnl_success)
      return false;
  return true;
}
#endif

/// A few hundred multiplications: no packing, no padding.
template <class T>
void tiny_gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<T> a, MatrixView<T> b, T beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += a.data[i * a.row + p * a.col] * b.data[p * b.row + j * b.col];
      T& to = c[i * ldc + j];
      to = beta == 0 ? alpha * sum : alpha * sum + beta * to;
    }
}

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<T> a, MatrixView<T> b, T beta, T* c, int64_t ldc) {
  constexpr int wide = tile_columns<T>;
  if (m * n * k <= 256) return tiny_gemm(m, n, k, alpha, a, b, beta, c, ldc);  // k = 0 as well
#if defined(LOCKSTEP_WITH_ONEDNN)
  if constexpr (std::is_same_v<T, float>)
    if (m * n * k > 64 * 64 * 32 && sgemm(m, n, k, alpha, a, b, beta, c, ldc)) return;
#endif
  const int64_t blocks = (k + depth_limit - 1) / depth_limit, step = (k + blocks - 1) / blocks;
  T* packed_a = scratch<T>(step * (round_up(std::min(m, rows_limit), tile_rows) + round_up(std::min(n, columns_limit), wide)));
  T* packed_b = packed_a + step * round_up(std::min(m, rows_limit), tile_rows);
  for (int64_t j0 = 0; j0 < n; j0 += columns_limit)
    for (int64_t p0 = 0; p0 < k; p0 += step) {
      const int64_t columns = std::min(columns_limit, n - j0), depth = std::min(step, k - p0);
      const T keep = p0 == 0 ? beta : T(1);
      pack<T, wide>(b.at(p0, j0).data, b.col, b.row, columns, depth, packed_b);
      for (int64_t i0 = 0; i0 < m; i0 += rows_limit) {
        const int64_t rows = std::min(rows_limit, m - i0);
        pack<T, tile_rows>(a.at(i0, p0).data, a.row, a.col, rows, depth, packed_a);
        for (int64_t j = 0; j < columns; j += wide) {
          const int width = int(std::min<int64_t>(wide, columns - j)), vectors = (width + lane_count<T> - 1) / lane_count<T>;
          const auto run = vectors == 3 ? tile<T, 3> : vectors == 2 ? tile<T, 2> : tile<T, 1>;
          for (int64_t i = 0; i < rows; i += tile_rows)
            run(depth, packed_a + i * depth, packed_b + j * depth, alpha, keep, c + (i0 + i) * ldc + j0 + j, ldc,
                int(std::min<int64_t>(tile_rows, rows - i)), width);
        }
      }
    }
}

template void gemm<float>(int64_t, int64_t, int64_t, float, MatrixView<float>, MatrixView<float>, float, float*, int64_t);
template void gemm<double>(int64_t, int64_t, int64_t, double, MatrixView<double>, MatrixView<double>, double, double*, int64_t);

}  // namespace lockstep::on_cpu
