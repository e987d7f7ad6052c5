// Copies between any strides and dtypes, and filling. A copy is first simplified: dims of size 1 are dropped, dims are
// sorted by the stride of the output, and dims that are adjacent in memory are merged. After this, most copies are a
// single contiguous run or a single matrix transpose.
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "tensor/complex.h"
#include "tensor/cpu/copy_run.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

template <size_t width>
using BitsOf = std::tuple_element_t<std::bit_width(width) - 1,
                                    std::tuple<uint8_t, uint16_t, uint32_t, uint64_t, unsigned __int128>>;

struct CopyLoop {
  int rank = 0;
  int64_t size[Dims::max_rank] = {}, from[Dims::max_rank] = {}, to[Dims::max_rank] = {};  // outermost first

  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
};

CopyLoop make_plan(const Shape& shape, const Strides& from, const Strides& to) {
  CopyLoop plan;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    int at = plan.rank++;
    for (; at > 0 && plan.to[at - 1] < to[i]; --at) {  // insertion sort keeps the order of equal strides
      plan.size[at] = plan.size[at - 1], plan.from[at] = plan.from[at - 1], plan.to[at] = plan.to[at - 1];
    }
    plan.size[at] = shape[i], plan.from[at] = from[i], plan.to[at] = to[i];
  }
  if (plan.rank == 0) return {.rank = 1, .size = {1}, .from = {1}, .to = {1}};
  int last = 0;
  for (int i = 1; i < plan.rank; ++i) {
    const bool joins = plan.from[last] == plan.from[i] * plan.size[i] && plan.to[last] == plan.to[i] * plan.size[i];
    if (joins) {
      plan.size[last] *= plan.size[i];
    } else {
      plan.size[++last] = plan.size[i];
    }
    plan.from[last] = plan.from[i], plan.to[last] = plan.to[i];
  }
  plan.rank = last + 1;
  return plan;
}

// Calls fn(offset in from, offset in to) for rows [begin, end). A row is the elements of the last `inner` dims
// at one index of the other dims.
template <class Fn> void for_rows(const CopyLoop& plan, int inner, int64_t begin, int64_t end, Fn&& fn) {
  const int outer = plan.rank - inner;
  int64_t index[Dims::max_rank] = {}, from = 0, to = 0;
  int64_t rest = begin;
  for (int d = outer - 1; d >= 0; --d) {
    index[d] = rest % plan.size[d];
    rest /= plan.size[d];
    from += index[d] * plan.from[d];
    to += index[d] * plan.to[d];
  }
  for (int64_t row = begin; row < end; ++row) {
    fn(from, to);
    for (int d = outer - 1; d >= 0; --d) {
      from += plan.from[d];
      to += plan.to[d];
      if (++index[d] < plan.size[d]) break;
      from -= plan.from[d] * plan.size[d];
      to -= plan.to[d] * plan.size[d];
      index[d] = 0;
    }
  }
}

// --- transposes ---

#if defined(__AVX512F__)
constexpr int widest = 64;
#elif defined(__AVX__)
constexpr int widest = 32;
#else
constexpr int widest = 16;
#endif

// A square of `side` x `side` elements with one register per row. It is transposed in registers, not in a buffer, so
// rows whose distance is a power of two cause no cache conflicts.
template <class T> struct Square {
  static constexpr int side = std::min<int>(widest / sizeof(T), 16);
  typedef T Row __attribute__((vector_size(side * sizeof(T))));

  template <int Step, int... I>
  [[gnu::always_inline]] static inline void exchange_pair(Row& a, Row& b, std::integer_sequence<int, I...>) {
    const Row low = __builtin_shufflevector(a, b, (I & Step ? I - Step + side : I)...);
    b = __builtin_shufflevector(a, b, (I & Step ? I + side : I + Step)...);
    a = low;
  }

  // Exchanges the upper right and the lower left quarter of every block of 2 * Step rows and 2 * Step lanes. Repeats
  // this with Step / 2, down to 1.
  template <int Step> static void exchange(Row (&rows)[side]) {
#pragma GCC unroll 16
    for (int i = 0; i < side; ++i) {
      if (!(i & Step)) exchange_pair<Step>(rows[i], rows[i + Step], std::make_integer_sequence<int, side>());
    }
    if constexpr (Step > 1) exchange<Step / 2>(rows);
  }

  static void transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
    Row rows[side];
#pragma GCC unroll 16
    for (int i = 0; i < side; ++i) std::memcpy(&rows[i], from + i * from_stride, sizeof(Row));
    exchange<side / 2>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < side; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Row));
  }
};

// to[i * to_stride + j] = from[j * from_stride + i] for i < rows, j < columns.
template <class T>
void transpose_block(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  constexpr int side = Square<T>::side;
  const int64_t full_rows = rows / side * side, full_columns = columns / side * side;
  for (int64_t j = 0; j < full_columns; j += side) {
    for (int64_t i = 0; i < full_rows; i += side) {
      const T* square = from + j * from_stride + i;
      if (j + side < full_columns) {  // the hardware does not prefetch rows this far apart
#pragma GCC unroll 16
        for (int k = side; k < 2 * side; ++k) __builtin_prefetch(square + k * from_stride);
      }
      Square<T>::transpose(square, from_stride, to + i * to_stride + j, to_stride);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < full_rows ? full_columns : 0; j < columns; ++j)
      to[i * to_stride + j] = from[j * from_stride + i];
  }
}

// Copies by transposing squares. The last dim must have stride 1 in `to`, and dim `across` stride 1 in `from`.
template <class T> void copy_transposed(const CopyLoop& original, int across, const T* from, T* to) {
  // Moves `across` next to the last dim; the order of the outer dims does not matter.
  CopyLoop plan;
  const auto take = [&](int d) {
    plan.size[plan.rank] = original.size[d], plan.from[plan.rank] = original.from[d];
    plan.to[plan.rank++] = original.to[d];
  };
  for (int d = 0; d + 1 < original.rank; ++d) {
    if (d != across) take(d);
  }
  take(across);
  take(original.rank - 1);
  const int row_dim = plan.rank - 2, column_dim = plan.rank - 1;
  const int64_t rows = plan.size[row_dim], columns = plan.size[column_dim];
  // A block reads 512 bytes of each of its columns: with 256 the copy took 1.5 times as long.
  constexpr int64_t high = 512 / sizeof(T), wide = 256;
  const int64_t down = (rows + high - 1) / high, blocks = down * ((columns + wide - 1) / wide);
  const int64_t matrices = plan.numel() / (rows * columns);
  const int64_t block_elements = std::min(rows, high) * std::min(columns, wide);
  parallel_for(matrices * blocks, std::max<int64_t>(1, light_grain / block_elements), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t matrix = at / blocks, stop = std::min(end, (matrix + 1) * blocks);
      for_rows(plan, 2, matrix, matrix + 1, [&](int64_t from_offset, int64_t to_offset) {
        for (; at < stop; ++at) {
          const int64_t block = at - matrix * blocks, row = block % down * high, column = block / down * wide;
          transpose_block(from + from_offset + row + column * plan.from[column_dim], plan.from[column_dim],
                          to + to_offset + row * plan.to[row_dim] + column, plan.to[row_dim],
                          std::min(high, rows - row), std::min(wide, columns - column));
        }
      });
    }
  });
}

template <class From, class To> void copy_plan(const CopyLoop& plan, const From* from, To* to) {
  const int last = plan.rank - 1;
  if (plan.rank == 1) {
    parallel_for(plan.size[0], light_grain, [&](int64_t begin, int64_t end) {
      copy_run(from + begin * plan.from[0], plan.from[0], to + begin * plan.to[0], plan.to[0], end - begin);
    });
    return;
  }
  if constexpr (std::is_same_v<From, To>) {
    if (plan.to[last] == 1 && plan.from[last] > 1) {
      for (int d = last - 1; d >= 0; --d) {
        if (plan.from[d] == 1 && plan.size[d] >= 4) return copy_transposed(plan, d, from, to);
      }
    }
  }
  const int64_t length = plan.size[last];
  parallel_for(plan.numel() / length, std::max<int64_t>(1, light_grain / length), [&](int64_t begin, int64_t end) {
    for_rows(plan, 1, begin, end, [&](int64_t from_offset, int64_t to_offset) {
      copy_run(from + from_offset, plan.from[last], to + to_offset, plan.to[last], length);
    });
  });
}

// Copies between equal dtypes: only the width of an element matters.
void copy_same(const CopyLoop& plan, int64_t width, const void* from, void* to) {
  const auto as = [&]<class T>(T) { copy_plan(plan, static_cast<const T*>(from), static_cast<T*>(to)); };
  switch (width) {
    case 1: return as(uint8_t{});
    case 2: return as(uint16_t{});
    case 4: return as(uint32_t{});
    case 8: return as(uint64_t{});
    default: return as(BitsOf<16>{});
  }
}

template <class T> void fill_plan(const CopyLoop& plan, T* to, T value) {
  const int last = plan.rank - 1;
  if (plan.rank == 1 && plan.to[0] == 1) {
    parallel_for(plan.size[0], 4 * light_grain,
                 [&](int64_t begin, int64_t end) { std::fill_n(to + begin, end - begin, value); });
    return;
  }
  const int64_t length = plan.size[last], stride = plan.to[last];
  parallel_for(plan.numel() / length, std::max<int64_t>(1, light_grain / length), [&](int64_t begin, int64_t end) {
    for_rows(plan, 1, begin, end, [&](int64_t, int64_t offset) {
      for (int64_t i = 0; i < length; ++i) to[offset + i * stride] = value;
    });
  });
}

}  // namespace

void copy(const Tensor& source, Tensor& out) {
  if (out.numel() == 0) return;
  const CopyLoop plan = make_plan(out.shape(), source.strides(), out.strides());
  if (source.dtype() == out.dtype()) return copy_same(plan, size_of(out.dtype()), source.raw_data(), out.raw_data());
  if (is_complex(out.dtype())) {
    for (int i = 0; i < 2; ++i) {
      Tensor part = complex_part(out, i);
      if (is_complex(source.dtype())) copy(complex_part(source, i), part);
      else if (i == 0) copy(source, part);
      else fill(part, 0);
    }
    return;
  }
  dispatch_all(source.dtype(), "copy", [&]<class From> {
    dispatch_all(out.dtype(), "copy", [&]<class To> {
      if constexpr (!std::is_same_v<From, To>) copy_plan(plan, source.data<From>(), out.data<To>());
    });
  });
}

void fill(Tensor& out, Scalar value) {
  if (out.numel() == 0) return;
  const CopyLoop plan = make_plan(out.shape(), out.strides(), out.strides());
  if (out.dtype() == c64) {
    const auto bits = std::bit_cast<BitsOf<8>>(std::complex<float>(value.to<float>()));
    return fill_plan(plan, static_cast<BitsOf<8>*>(out.raw_data()), bits);
  }
  if (out.dtype() == c128) {
    const auto bits = std::bit_cast<BitsOf<16>>(std::complex<double>(value.to<double>()));
    return fill_plan(plan, static_cast<BitsOf<16>*>(out.raw_data()), bits);
  }
  dispatch_all(out.dtype(), "fill", [&]<class T> {
    // Dtypes of one width share code: the value is just a bit pattern.
    using Bits = BitsOf<sizeof(T)>;
    fill_plan(plan, static_cast<Bits*>(out.raw_data()), std::bit_cast<Bits>(value.to<T>()));
  });
}

}  // namespace lockstep::on_cpu
