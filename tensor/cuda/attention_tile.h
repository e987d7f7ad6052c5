#pragma once
// What both directions of attention share: the problem as pointers and strides, tiles in shared memory and their
// products, masks and dropout of one score. Tiles hold what the tensors hold, f32 or f64.
//
// A tile is size x size, its rows padded by 16 bytes, so that lanes that read 16 bytes of neighbouring rows meet
// different banks. A block has 16 threads for each 4 rows of a tile: thread (tx, ty) works on rows 4 ty to 4 ty + 3.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tensor/attention_sizes.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/warp.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::on_cuda {

template <class A> struct Tile {
  static constexpr int vec = 16 / sizeof(A), size = 16 * vec, line = size + vec, threads = 4 * size;
  static constexpr size_t bytes = sizeof(A) * size * line;
};

/// A (B, heads, tokens, D) tensor; D has stride 1. wide: rows begin where V elements may be read at once.
template <class T> struct Heads {
  T* data;
  int64_t batch, head, token;
  bool wide;

  explicit Heads(const Tensor& x)
      : data(static_cast<T*>(x.raw_data())), batch(x.strides()[0]), head(x.strides()[1]), token(x.strides()[2]) {
    constexpr int v = Tile<Compute<std::remove_const_t<T>>>::vec;
    wide = is_aligned(data, v) && x.shape()[3] % v == 0 && batch % v == 0 && head % v == 0 && token % v == 0;
  }
  __device__ T* row(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * token; }
};

enum class Mask : uint8_t { none, choice, added };  // choice: bool; added: of q's dtype

struct QueryKey {
  int64_t i, j;
};

/// With a mask and dropout.
struct AttentionPlan : AttentionSizes {
  uint64_t reach;  ///< a query sees keys at most so many places before it; none behind it, unless this is all ones
  Mask kind = Mask::none;
  const void* mask = nullptr;
  int64_t mask_stride[4] = {};
  uint64_t threshold = 0;  ///< words from here on keep their weight; 0: no dropout
  double kept = 1;         ///< what a kept weight is multiplied by; 1 without dropout

  AttentionPlan(const Tensor& q, const Tensor& k, const Tensor& mask_tensor, const AttentionArgs& args)
      : AttentionSizes(of(q, k, args)),
        reach(!causal      ? ~uint64_t(0)
              : window > 0 ? uint64_t(window) - 1
                           : ~uint64_t(0) >> 1) {
    if (args.dropout > 0) {
      threshold = uint64_t(std::ceil(args.dropout * 0x1p32));  // as in dropout
      kept = args.dropout < 1 ? 1 / (1 - args.dropout) : 0;
    }
    if (!mask_tensor.defined()) return;
    kind = mask_tensor.dtype() == boolean ? Mask::choice : Mask::added;
    mask = mask_tensor.raw_data();
    for (int d = 0; d < 4; ++d) mask_stride[d] = mask_tensor.strides()[d];
  }

  /// Whether query i may see key j, both in range.
  __device__ bool sees(int64_t i, int64_t j) const { return uint64_t(i + keys - queries - j) <= reach; }

  /// Of a layout: which of `count` keys from j0 on the `n` queries from i0 on of head h attend to, a bit each. A word
  /// for each query and 64 keys, those of the first 64 keys first. False where none attends to any. A barrier for the
  /// block, and all of its threads get one answer. Kernels are compiled with and without a layout (with_layout()): it
  /// takes registers.
  __device__ bool attended(int64_t h, int64_t i0, int n, int64_t j0, int count, uint64_t* words) const {
    __syncthreads();  // the last words have been read
    const int thread = int(threadIdx.x), r = count > 64 ? thread % n : thread, first = count > 64 ? thread / n * 64 : 0;
    const int64_t place = i0 + r + keys - queries;
    const bool mine = r < n && first < count, there = mine && i0 + r < queries;
    const uint64_t bits =
        there ? layout.attended(first_head + h, place / layout.block, j0 + first, count < 64 ? count : 64) : 0;
    if (mine) words[thread] = bits;
    return __syncthreads_or(bits != 0) != 0;
  }
  /// Of how many tiles of `size` keys, from number `first` to before `end`, attended() is true. A barrier, too.
  __device__ int tiles_attended(int64_t h, int64_t i0, int n, int64_t first, int64_t end, int size) const {
    const int64_t shift = keys - queries, last = i0 + n < queries ? i0 + n : queries;
    int found = 0;
    for (; first < end; first += blockDim.x) {
      const int64_t tile = first + threadIdx.x;
      uint64_t bits = 0;
      for (int64_t place = i0 + shift; tile < end && place < last + shift;
           place = (place / layout.block + 1) * layout.block) {
        for (int64_t j = tile * size; j < (tile + 1) * size; j += 64)
          bits |= layout.attended(first_head + h, place / layout.block, j, 64);
      }
      found += __syncthreads_count(bits != 0);
    }
    return found;
  }

  /// The score of query i and key j, both in range, after the mask; minus infinity where i does not see j.
  template <class T, class A> __device__ A masked(A score, int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!sees(i, j)) return -infinity<A>;
    if (kind == Mask::none) return score;
    const int64_t place = b * mask_stride[0] + h * mask_stride[1] + i * mask_stride[2] + j * mask_stride[3];
    if (kind == Mask::added) return score + load(static_cast<const T*>(mask) + place);
    return static_cast<const bool*>(mask)[place] ? score : -infinity<A>;
  }
  /// Whether the weight of query i and key j survives dropout, keyed by the place in (B, H, T, S) of all heads.
  __device__ bool keeps(PhiloxKey known, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const uint64_t place = uint64_t(((b * all_heads + first_head + h) * queries + i) * keys + j);
    const auto words = philox(known, place / 4);
    const uint32_t low = place & 1 ? words[1] : words[0], high = place & 1 ? words[3] : words[2];
    return (place & 2 ? high : low) >= threshold;
  }
  /// keeps() of n <= 32 places, one bit each; at(e) gives the QueryKey of bit e. All ones without dropout. A loop, and
  /// not part of the loops that use the bits: unrolled, its rounds are most of a kernel.
  template <int n, class At> __device__ uint32_t kept_of(int64_t b, int64_t h, At&& at) const {
    static_assert(n <= 32);
    if (threshold == 0) return ~0u;
    const PhiloxKey known = key.known();
    uint32_t bits = 0;
#pragma unroll 1
    for (int e = 0; e < n; ++e) {
      const QueryKey place = at(e);
      bits |= uint32_t(keeps(known, b, h, place.i, place.j)) << e;
    }
    return bits;
  }
  /// What a weight is multiplied by, given bit `e` of kept_of().
  template <class A> __device__ A factor(uint32_t bits, int e) const { return bits >> e & 1 ? A(kept) : A(0); }
};

/// What the gradient needs besides.
template <class T> struct GradPlan : AttentionPlan {
  Heads<const T> grad, q, k, v;
  const Compute<T>*lse, *delta;

  __device__ int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * queries + i; }
  /// dS of query i and key j, and P with dropout's factor f, from their products; zeros where i does not see j.
  /// row_lse and row_delta are those of the query, which are read where there is one.
  __device__ void differentiate(int64_t b, int64_t h, int64_t i, int64_t j, bool attends, Compute<T> f,
                                const Compute<T>* row_lse, const Compute<T>* row_delta, Compute<T> score,
                                Compute<T> slope, Compute<T>& weight, Compute<T>& difference) const {
    using A = Compute<T>;
    weight = difference = 0;
    if (!attends || i >= queries || j >= keys || !sees(i, j)) return;
    const A saved = *row_lse;
    if (saved == -infinity<A>) return;  // a row that attends to nothing
    const A p = exp_of(masked<T>(score, b, h, i, j) - saved);
    weight = p * f;
    difference = p * (slope * f - *row_delta);
  }
};

// Attention of f16 and bf16 on tensor cores (attention_mma.cu). What they do not take (odd widths, old cards) is
// converted and done in f32: rare, and it halves the kernels that are compiled.
bool fits_mma(std::initializer_list<const Tensor*> tensors);
/// False, and nothing done, where it does not fit.
bool attention_mma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                   Tensor& lse);
/// The tensors must fit; `counters` are so many zeros.
void attention_grad_mma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                        Tensor& grad_k, Tensor& grad_v);
int64_t counters_of_grad(const AttentionPlan& plan);
/// The same on Hopper's own tensor cores (attention_wgmma.cu), of tensors that fit mma: where the device is of compute
/// capability 9.0, the plan is one of those it takes, TMA takes these tensors, and LOCKSTEP_WGMMA is not 0.
bool fits_wgmma(const AttentionPlan& plan, std::initializer_list<const Tensor*> tensors);
void attention_wgmma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                     Tensor& lse);
void attention_grad_wgmma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                          Tensor& grad_k, Tensor& grad_v);
/// A mask to add, in f32; any other as it is.
inline Tensor as_f32(const Tensor& mask) { return mask.defined() && mask.dtype() != boolean ? mask.to(f32) : mask; }

template <class A> using TileVector = Vector<A, Tile<A>::vec>;

/// Rows of `width` elements, times `factor`, from element `first` on, into a tile; zeros beyond the last row and
/// element.
template <class T, class A>
__device__ inline void load_tile(const T* from, int64_t stride, bool wide, int64_t rows, int64_t first, int64_t width,
                                 A factor, A* tile) {
  using Z = Tile<A>;
  for (int n = threadIdx.x; n < Z::size * 16; n += Z::threads) {
    const int row = n / 16, column = n % 16 * Z::vec;
    TileVector<A> x{};
    if (row < rows) {
      const T* const p = from + row * stride + first + column;
      if (wide && first + column < width) {
        load_values<Z::vec>(p, x.v);
      } else {
#pragma unroll
        for (int e = 0; e < Z::vec; ++e) {
          if (first + column + e < width) x.v[e] = load(p + e);
        }
      }
#pragma unroll
      for (int e = 0; e < Z::vec; ++e) x.v[e] *= factor;
    }
    *reinterpret_cast<TileVector<A>*>(tile + row * Z::line + column) = x;
  }
}

/// sum[i][j] += row 4 ty + i of a times row tx + 16 j of b.
template <class A> __device__ inline void dot_rows(const A* a, const A* b, A (&sum)[4][Tile<A>::vec]) {
  using Z = Tile<A>;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 4
  for (int k = 0; k < Z::size; k += Z::vec) {
    TileVector<A> x[4], y[Z::vec];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const TileVector<A>*>(a + (4 * ty + i) * Z::line + k);
#pragma unroll
    for (int j = 0; j < Z::vec; ++j) y[j] = *reinterpret_cast<const TileVector<A>*>(b + (tx + 16 * j) * Z::line + k);
#pragma unroll
    for (int e = 0; e < Z::vec; ++e) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < Z::vec; ++j) sum[i][j] += x[i].v[e] * y[j].v[e];
      }
    }
  }
}

/// sum[i][f] += row 4 ty + i of weights times column vec tx + f of values.
template <class A> __device__ inline void times_rows(const A* weights, const A* values, A (&sum)[4][Tile<A>::vec]) {
  using Z = Tile<A>;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 4
  for (int k = 0; k < Z::size; k += Z::vec) {
    TileVector<A> x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const TileVector<A>*>(weights + (4 * ty + i) * Z::line + k);
#pragma unroll
    for (int e = 0; e < Z::vec; ++e) {
      const TileVector<A> y = *reinterpret_cast<const TileVector<A>*>(values + (k + e) * Z::line + Z::vec * tx);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int f = 0; f < Z::vec; ++f) sum[i][f] += x[i].v[e] * y.v[f];
      }
    }
  }
}

/// Stores element (4 ty + i, tx + 16 j) of a tile.
template <class A> __device__ inline void put(A* tile, int i, int j, A value) {
  tile[(4 * (threadIdx.x / 16) + i) * Tile<A>::line + threadIdx.x % 16 + 16 * j] = value;
}

/// Writes a thread's part of a row, times `factor`: the vec elements from `column` on that are below width.
template <class T, class A>
__device__ inline void store_part(T* row, bool wide, int64_t column, int64_t width, const A (&values)[Tile<A>::vec],
                                  A factor) {
  A y[Tile<A>::vec];
#pragma unroll
  for (int f = 0; f < Tile<A>::vec; ++f) y[f] = values[f] * factor;
  if (wide && column < width) {
    store_values<Tile<A>::vec>(row + column, y);
  } else {
#pragma unroll
    for (int f = 0; f < Tile<A>::vec; ++f) {
      if (column + f < width) store(row + column + f, y[f]);
    }
  }
}

/// Whether row r of what attended() found has the key of number c, of the 64 in a word.
__device__ inline bool attends(const uint64_t* words, int r, int c) { return (words[r] >> c & 1) != 0; }

/// Calls fn.template operator()<sparse>().
template <class Fn> void with_layout(const AttentionPlan& plan, Fn&& fn) {
  if (plan.layout.block > 0) fn.template operator()<true>();
  else fn.template operator()<false>();
}

/// Calls fn.template operator()<chunks>(slices): a block makes `chunks` tiles' width of the results, and there are
/// `slices` of it.
template <class A, int most, class Fn> void with_chunks(int64_t width, Fn&& fn) {
  const int64_t tiles = std::max<int64_t>(1, (width + Tile<A>::size - 1) / Tile<A>::size);
  if (tiles == 1) return fn.template operator()<1>(int64_t(1));
  if constexpr (most > 2) {
    if (tiles > 2) return fn.template operator()<most>((tiles + most - 1) / most);
  }
  if constexpr (most > 1) return fn.template operator()<2>((tiles + 1) / 2);
  fn.template operator()<1>(tiles);
}

}  // namespace lockstep::on_cuda
