#pragma once
// The two inner parts of a matrix product. pack() copies rows of `a` or columns of `b` into strips, in the order that
// the innermost loop needs. tile() is that loop and keeps a tile of the result in registers:
//
//                  b strip    tile_columns = tile_vectors * lanes
//                  +---------+
//   a strip        | tile of |      for p in depth: tile += a[p][0 .. tile_rows) * b[p][0 .. tile_columns)
//   tile_rows      | c       |
//                  +---------+
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/registers.h"

namespace lockstep::on_cpu {

// Number of vectors in a row of a tile. The size of a tile is chosen so that the registers hold the tile, one row of
// `b` and one number of `a`. pack() needs tile_rows to be at most `lanes`, or a multiple of it.
template <class T> inline constexpr int tile_vectors = lanes<T> >= (vector_registers < 32 ? 6 : 14) ? 2 : 3;
/// Number of rows of a tile.
template <class T>
inline constexpr int tile_rows = vector_registers < 32 ? lanes<T> >= 6 ? 6 : 4
                                 : lanes<T> >= 14      ? 14
                                                       : 8;
/// Number of columns of a tile.
template <class T> inline constexpr int tile_columns = tile_vectors<T>* lanes<T>;

/// Copies lines to a strip: out[c * width + r] = in[r * apart + c], for r < count and c < columns. Writes a whole
/// vector for each c.
template <int width, class T, class In>
[[gnu::always_inline]] inline void pack_square(const In* in, int64_t apart, int count, int columns, T* out) {
  Vector<T> square[lanes<T>];
#pragma GCC unroll 16
  for (int r = 0; r < lanes<T>; ++r) {
    if (r < count) __builtin_prefetch(in + r * apart + 4 * lanes<T>);
    square[r] = r < count ? read<T>(in + r * apart, columns) : Vector<T>{};
  }
  transpose<T>(square);
#pragma GCC unroll 16
  for (int c = 0; c < lanes<T>; ++c)
    if (c < columns) std::memcpy(out + c * width, &square[c], sizeof square[c]);
}

/// Copies `count` lines of length `depth` into strips of `width` lines, out[line / width][p][line % width]. Fills the
/// last strip up with zeros. Element p of a line is in[line * apart + p * step]. May write up to a vector past the last
/// strip.
template <int width, class T, class In>
void pack(const In* in, int64_t apart, int64_t step, int64_t count, int64_t depth, T* out) {
  constexpr int w = lanes<T>, side = std::min(w, width);
  const int64_t full = count / width * width;
  if (step == 1 && apart != 1) {
    for (int64_t i = 0; i < count; i += width)
      for (int64_t p = 0; p < depth; p += w)
        for (int first = 0; first < width; first += w) {
          const In* const from = in + (i + first) * apart + p;
          T* const to = out + i * depth + p * width + first;
          const int lines = int(std::clamp<int64_t>(count - i - first, 0, side)),
                    columns = int(std::min<int64_t>(w, depth - p));
          if (lines == side && columns == w) pack_square<width>(from, apart, side, w, to);
          else pack_square<width>(from, apart, lines, columns, to);
        }
    return;
  }
  for (int64_t p = 0; p < depth; ++p) {
    const In* const from = in + p * step;
    T* const to = out + p * width;
    int64_t i = 0;
    if (apart == 1) {  // copies whole rows, and prefetches later rows, which may lie on other pages
      for (; i < full; i += width) {
        __builtin_prefetch(from + 8 * step + i);
        if constexpr (std::is_same_v<T, In>) {
          std::memcpy(to + i * depth, from + i, sizeof(T) * width);
        } else {
          for (int first = 0; first < width; first += w) {
            T part[w];
            // Reads a whole vector if at least w numbers are left in `from`, even if fewer of them are needed.
            const int64_t there = count - i - first;
            const Vector<T> v = there >= w ? read<T>(from + i + first, w) : read<T>(from + i + first, int(there));
            std::memcpy(part, &v, sizeof v);
            std::memcpy(to + i * depth + first, part, sizeof(T) * side);
          }
        }
      }
    }
    for (; i < count; i += width)
      for (int r = 0; r < width; ++r) to[i * depth + r] = i + r < count ? T(from[(i + r) * apart]) : T(0);
  }
}

/// True if a tile has so few rows that it may read rows of a matrix in place. If a tile had more rows, and the rows
/// were a power of two apart, they would compete for the same places in the L1 cache.
template <class T> inline constexpr bool reads_rows = tile_rows<T> <= 8;

/// alpha * sum + beta * old; old is ignored if beta is 0. alpha * sum is rounded before the addition: otherwise the
/// compiler would fuse one of the two products with the addition, and not the same product everywhere.
template <class T, class V> [[gnu::always_inline]] inline V add_scaled(V sum, T alpha, T beta, V old) {
  V v = alpha * sum;
  keep_in_register(v), keep_in_register(beta);
  return beta == 0 ? v : v + beta * old;
}

/// c = alpha * a * b + beta * c for a tile c of `rows` rows, ldc apart; c is not read if beta is 0. `b` is a packed
/// strip. `a` is a packed strip if `packed`, else it points to rows of a matrix that are lda apart.
template <class T, int rows, bool packed>
void tile(int64_t depth, const T* __restrict a, int64_t lda, const T* __restrict b, T alpha, T beta, T* __restrict c,
          int64_t ldc) {
  constexpr int w = lanes<T>, vectors = tile_vectors<T>;
  const int64_t row = packed ? 1 : lda, step = packed ? tile_rows<T> : 1;
  Vector<T> sum[rows][vectors] = {};
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(c + i * ldc + j * w, 1);
#pragma GCC unroll unrolled_depth
  for (int64_t p = 0; p < depth; ++p, a += step, b += tile_columns<T>) {
    Vector<T> line[vectors];
    if constexpr (vector_registers >= 32) {
      // Prefetches what later steps read: `a` lies in L1 or L2, `b` in L2.
      if constexpr (packed) __builtin_prefetch(a + 16 * tile_rows<T>);
      for (int j = 0; j < tile_columns<T>; j += 64 / int(sizeof(T))) __builtin_prefetch(b + 8 * tile_columns<T> + j);
    }
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) {
      std::memcpy(&line[j], b + j * w, sizeof line[j]);
      keep_in_register(line[j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < vectors; ++j) sum[i][j] += a[i * row] * line[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 3
    for (int j = 0; j < vectors; ++j) {
      T* const to = c + i * ldc + j * w;
      Vector<T> old{};
      if (beta != 0) std::memcpy(&old, to, sizeof old);
      const Vector<T> v = add_scaled<T>(sum[i][j], alpha, beta, old);
      std::memcpy(to, &v, sizeof v);
    }
}

/// Pointer to a function tile().
template <class T> using Tile = void (*)(int64_t, const T*, int64_t, const T*, T, T, T*, int64_t);
/// A table of the functions tile() for 1 to tile_rows rows. Operand a is a packed strip if `packed`.
template <class T, bool packed> inline constexpr auto tiles = []<int... rows>(std::integer_sequence<int, rows...>) {
  return std::array<Tile<T>, sizeof...(rows)>{&tile<T, rows + 1, packed>...};
}
(std::make_integer_sequence<int, tile_rows<T>>());

}  // namespace lockstep::on_cpu
