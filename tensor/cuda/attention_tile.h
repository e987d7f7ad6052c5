#pragma once
// Shared by attention forward and backward: pointers and strides of the tensors, tiles in shared memory and their
// products, and functions that apply the mask and dropout to a single score. Tiles are f32 or f64, like the tensors.
//
// A tile is size x size. Its rows are padded by 16 bytes, so lanes that read 16 bytes of neighbouring rows hit
// different banks. A block has 16 threads for each 4 rows of a tile: thread (tx, ty) works on rows 4 ty to 4 ty + 3.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tensor/attention_sizes.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::on_cuda {

/// The shape of a tile of A (f32 or f64). `vec` elements are 16 bytes, `line` is the stride of its rows.
template <class A> struct Tile {
  static constexpr int vec = 16 / sizeof(A), size = 16 * vec, line = size + vec, threads = 4 * size;
  static constexpr size_t bytes = sizeof(A) * size * line;
};

/// A (B, heads, tokens, D) tensor whose last dim has stride 1. `wide`: every row may be read 16 bytes at a time.
template <class T> struct Heads {
  T* data;
  int64_t batch, head, token;
  bool wide;

  explicit Heads(const Tensor& x)
      : data(static_cast<T*>(x.raw_data())), batch(x.strides()[0]), head(x.strides()[1]), token(x.strides()[2]) {
    constexpr int v = Tile<Compute<std::remove_const_t<T>>>::vec;
    wide = is_aligned(data, v) && x.shape()[3] % v == 0 && batch % v == 0 && head % v == 0 && token % v == 0;
  }
  /// The row of token t in head h of batch entry b.
  __device__ T* row(int64_t b, int64_t h, int64_t t) const { return data + b * batch + h * head + t * token; }
};

/// choice: a boolean mask, true where the query may attend; added: a mask of q's dtype, added to the scores.
enum class Mask : uint8_t { none, choice, added };

/// A place in the matrix of scores: query i, key j.
struct QueryKey {
  int64_t i, j;
};

/// The sizes of an attention call, its mask and its dropout, passed to kernels by value.
struct AttentionPlan : AttentionSizes {
  uint64_t reach;  ///< a query sees the keys from `reach` places before it up to itself; all ones: every key
  Mask kind = Mask::none;
  const void* mask = nullptr;
  int64_t mask_stride[4] = {};
  uint64_t threshold = 0;  ///< a weight is kept if its random word is at least this; 0: no dropout
  double kept = 1;         ///< kept weights are multiplied by this: 1 / (1 - p); 1 without dropout

  AttentionPlan(const Tensor& q, const Tensor& k, const Tensor& mask_tensor, const AttentionArgs& args)
      : AttentionSizes(of(q, k, args)),
        reach(!causal      ? ~uint64_t(0)
              : window > 0 ? uint64_t(window) - 1
                           : ~uint64_t(0) >> 1) {
    if (args.dropout > 0) {
      threshold = uint64_t(std::ceil(args.dropout * 0x1p32));  // the same rounding as dropout()
      kept = args.dropout < 1 ? 1 / (1 - args.dropout) : 0;
    }
    if (!mask_tensor.defined()) return;
    kind = mask_tensor.dtype() == boolean ? Mask::choice : Mask::added;
    mask = mask_tensor.raw_data();
    for (int d = 0; d < 4; ++d) mask_stride[d] = mask_tensor.strides()[d];
  }

  /// True if query i may see key j by the causal mask and the window; i and j must be in range.
  __device__ bool sees(int64_t i, int64_t j) const { return uint64_t(i + keys - queries - j) <= reach; }

  /// Block-sparse layouts only. Finds to which of keys j0 to j0 + count - 1 each of queries i0 to i0 + n - 1 of head h
  /// attends. words[r] gets the bits of query i0 + r for the first 64 keys, words[n + r] for the next 64. False if no
  /// query attends to any of the keys. Contains barriers; all threads of the block get the same result. Kernels are
  /// compiled with and without this call (with_layout()), because the call costs registers.
  __device__ bool attended(int64_t h, int64_t i0, int n, int64_t j0, int count, uint64_t* words) const {
    __syncthreads();  // the previous words have been read
    const int thread = int(threadIdx.x), r = count > 64 ? thread % n : thread, first = count > 64 ? thread / n * 64 : 0;
    const int64_t place = i0 + r + keys - queries;
    const bool mine = r < n && first < count, there = mine && i0 + r < queries;
    const uint64_t bits =
        there ? layout.attended(first_head + h, place / layout.block, j0 + first, count < 64 ? count : 64) : 0;
    if (mine) words[thread] = bits;
    return __syncthreads_or(bits != 0) != 0;
  }
  /// Divides the keys into tiles of `size` keys. Returns how many of tiles first, first + 1, ..., end - 1 have a key to
  /// which one of the queries i0 to i0 + n - 1 attends. Contains barriers.
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

  /// The score of query i and key j, both in range, with the mask applied; minus infinity if i may not see j.
  template <class T, class A> __device__ A masked(A score, int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!sees(i, j)) return -infinity<A>;
    if (kind == Mask::none) return score;
    const int64_t place = b * mask_stride[0] + h * mask_stride[1] + i * mask_stride[2] + j * mask_stride[3];
    if (kind == Mask::added) return score + load(static_cast<const T*>(mask) + place);
    return static_cast<const bool*>(mask)[place] ? score : -infinity<A>;
  }
  /// True if dropout keeps the weight of query i and key j. The random word is keyed by its index in (B, H, T, S), over
  /// all heads of the model, so it does not depend on how heads are split over ranks.
  __device__ bool keeps(PhiloxKey known, int64_t b, int64_t h, int64_t i, int64_t j) const {
    const uint64_t place = uint64_t(((b * all_heads + first_head + h) * queries + i) * keys + j);
    const auto words = philox(known, place / 4);
    const uint32_t low = place & 1 ? words[1] : words[0], high = place & 1 ? words[3] : words[2];
    return (place & 2 ? high : low) >= threshold;
  }
  /// Dropout's mask of n <= 32 pairs of query and key: bit e is keeps() of the pair at(e). Without dropout all bits are
  /// 1. This loop must not be unrolled: n copies of Philox's code would be most of a kernel. So it is separate
  /// from the unrolled loops that use the bits.
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
  /// The factor by which dropout multiplies a weight. It follows from bit `e` of what kept_of() returned.
  template <class A> __device__ A factor(uint32_t bits, int e) const { return bits >> e & 1 ? A(kept) : A(0); }
};

/// Additional inputs of the backward pass.
template <class T> struct GradPlan : AttentionPlan {
  Heads<const T> grad, q, k, v;
  const Compute<T>*lse, *delta;

  /// Index of query i in lse and delta.
  __device__ int64_t row(int64_t b, int64_t h, int64_t i) const { return (b * heads + h) * queries + i; }
  /// Computes `weight`, the attention weight P of query i and key j times dropout's factor f, and `difference`, the
  /// gradient of the score, from the products q k^T (`score`) and grad v^T (`slope`). Both results are 0 if i does not
  /// attend to j. row_lse and row_delta are the values of query i. They are read only if i is in range.
  __device__ void differentiate(int64_t b, int64_t h, int64_t i, int64_t j, bool attends, Compute<T> f,
                                const Compute<T>* row_lse, const Compute<T>* row_delta, Compute<T> score,
                                Compute<T> slope, Compute<T>& weight, Compute<T>& difference) const {
    using A = Compute<T>;
    weight = difference = 0;
    if (!attends || i >= queries || j >= keys || !sees(i, j)) return;
    const A saved = *row_lse;
    if (saved == -infinity<A>) return;  // the query attends to no key
    const A p = exp_of(masked<T>(score, b, h, i, j) - saved);
    weight = p * f;
    difference = p * (slope * f - *row_delta);
  }
};

/// True if attention_mma.cu can compute attention of these tensors on tensor cores: f16 or bf16, heads of at most 128
/// elements, rows aligned to 16 bytes, sm_80 or later. Other f16 and bf16 tensors are rare. They are converted to f32,
/// so that only half as many kernels must be compiled.
bool fits_mma(std::initializer_list<const Tensor*> tensors);
/// Attention forward on tensor cores. If fits_mma() is false for the tensors, does nothing and returns false.
bool attention_mma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                   Tensor& lse);
/// Attention backward on tensor cores. The tensors must pass fits_mma(). `counters` is an array of
/// counters_of_grad() zeros on the device.
void attention_grad_mma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                        Tensor& grad_k, Tensor& grad_v);
/// The number of counters that attention_grad_mma() needs: one to number the blocks, and one (semaphore.h) for each
/// pair (tile of queries, part of the tile's grad_q): the number of blocks that have added to this part.
int64_t counters_of_grad(const AttentionPlan& plan);
/// True if attention_wgmma.cu can compute attention of these tensors on Hopper's tensor cores: the tensors fit mma, the
/// device has compute capability 9.0, heads have 64 or 128 elements, the scale is positive, TMA accepts the tensors,
/// LOCKSTEP_WGMMA is not 0, and there is no mask, dropout, block layout or window.
bool fits_wgmma(const AttentionPlan& plan, std::initializer_list<const Tensor*> tensors);
/// Attention forward and backward on Hopper's tensor cores, for tensors that pass fits_wgmma().
void attention_wgmma(const AttentionPlan& plan, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
                     Tensor& lse);
void attention_grad_wgmma(const AttentionPlan& plan, const Tensor& grad, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& lse, const float* delta, unsigned* counters, Tensor& grad_q,
                          Tensor& grad_k, Tensor& grad_v);
/// Returns an additive mask converted to f32, and a boolean or undefined mask unchanged.
inline Tensor as_f32(const Tensor& mask) { return mask.defined() && mask.dtype() != boolean ? mask.to(f32) : mask; }

/// 16 bytes of a tile.
template <class A> using TileVector = Vector<A, Tile<A>::vec>;

/// Loads a tile of `rows` rows, elements first to first + size - 1 of each, times `factor`. `width` is the length of a
/// row; elements beyond the last row or `width` become zeros.
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

/// sum[i][j] += dot product of row 4 ty + i of a and row tx + 16 j of b.
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

/// sum[i][f] += dot product of row 4 ty + i of weights and column vec * tx + f of values.
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

/// Stores a thread's element (4 ty + i, tx + 16 j) of a tile.
template <class A> __device__ inline void put(A* tile, int i, int j, A value) {
  tile[(4 * (threadIdx.x / 16) + i) * Tile<A>::line + threadIdx.x % 16 + 16 * j] = value;
}

/// Writes a thread's part of a row, times `factor`: vec elements from `column`, cut off at `width`.
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

/// True if bit c (0 to 63) of words[r] is set: then the query of row r attends to key c. attended() fills the words.
__device__ inline bool attends(const uint64_t* words, int r, int c) { return (words[r] >> c & 1) != 0; }

/// Calls fn.template operator()<sparse>(); sparse is true if the plan has a block layout.
template <class Fn> void with_layout(const AttentionPlan& plan, Fn&& fn) {
  if (plan.layout.block > 0) fn.template operator()<true>();
  else fn.template operator()<false>();
}

/// Chooses how many blocks share the columns of the result, in tiles of Tile<A>::size columns: calls
/// fn.template operator()<chunks>(slices), where each of `slices` blocks computes `chunks` tiles.
template <class A, int limit, class Fn> void with_chunks(int64_t width, Fn&& fn) {
  const int64_t tiles = std::max<int64_t>(1, (width + Tile<A>::size - 1) / Tile<A>::size);
  if (tiles == 1) return fn.template operator()<1>(int64_t(1));
  if constexpr (limit > 2) {
    if (tiles > 2) return fn.template operator()<limit>((tiles + limit - 1) / limit);
  }
  if constexpr (limit > 1) return fn.template operator()<2>((tiles + 1) / 2);
  fn.template operator()<1>(tiles);
}

}  // namespace lockstep::on_cuda
