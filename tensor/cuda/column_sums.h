#pragma once
// Sums of a matrix's columns by kernels whose blocks walk along rows: the gradients of a norm's weight and bias, and of
// the bias of the layer before the norm. norm.cu and column_sums.cu add with these functions, so a bias's gradient has
// the same bits wherever it is computed.
//
// Up to 264 blocks (two for each of an H200's 132 multiprocessors) share the rows, and each writes its sums. 16 blocks
// are a group. The block that finishes last in its group adds up the group's sums. The block that does so last adds up
// the sums of all groups. Shape and dtype alone fix the order of the additions; only the block that adds may vary.
#include "tensor/cuda/rows.h"

namespace lockstep::on_cuda {

/// The number of rows that a block works on at the same time: with WarpRow one per warp, with BlockRow one.
template <class Row> inline constexpr int lines_of = Row::in_registers ? Row::threads / warp : 1;

/// The number of blocks that share the rows: each gets at least 16 rows, or 8 for each of its warps.
template <class Row> int64_t sum_blocks(int64_t rows) {
  constexpr int64_t each = Row::in_registers ? 8 * lines_of<Row> : 16;
  return std::clamp<int64_t>((rows + each - 1) / each, 1, 264);
}
/// The number of blocks in a group. The largest number of blocks, 264, gives 17 groups.
inline constexpr int group_blocks = 16;
/// Counters that a grid of `blocks` blocks needs.
LOCKSTEP_HD constexpr int64_t counters_of(int64_t blocks) { return (blocks + group_blocks - 1) / group_blocks + 1; }

/// The order in which a block stores its sums of one kind (such as bias gradients), one per column: of(k, e, t) is the
/// index of the sum for element e of thread t's k-th vector. Words (16 bytes) of neighbouring threads lie side by side.
template <class A, int V> struct SumPlaces {
  static constexpr int W = V < int(16 / sizeof(A)) ? V : int(16 / sizeof(A));
  using Word = Vector<A, W>;
  int threads;

  LOCKSTEP_HD int64_t size(int64_t columns) const {
    const int64_t vectors = (columns + V - 1) / V;
    return (vectors + threads - 1) / threads * threads * V;
  }
  LOCKSTEP_HD int64_t of(int64_t k, int e, int t) const { return ((k * (V / W) + e / W) * threads + t) * W + e % W; }
  /// The column of the first element of word `i`.
  LOCKSTEP_HD int64_t column(int64_t i) const {
    const int64_t words = i / threads;
    return (words / (V / W) * threads + i % threads) * V + words % (V / W) * W;
  }
};

/// Memory for a kernel's sums and results. Results of kind k (such as bias gradients) go to to[k] unless it is null.
template <class T> struct SumArgs {
  Compute<T>* sums = nullptr;    ///< the blocks' sums, one block after the other; null: none are wanted
  unsigned* counters = nullptr;  ///< counters_of() zeros (cuda::counters())
  T* to[3] = {};
};

/// All threads of `count` blocks call this. Returns true in the block that calls it last, which then sees all that the
/// other blocks wrote before their calls. Leaves 0 in *counter for the next kernel.
__device__ inline bool is_last(unsigned* counter, unsigned count) {
  LOCKSTEP_SHARED(unsigned, before, [1]);
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    __threadfence();
    before[0] = atomicInc(counter, count - 1);
    __threadfence();
  }
  __syncthreads();
  return before[0] == count - 1;
}

/// Loads a word that another block has written.
template <class A, int W> __device__ inline Vector<A, W> load_written(const A* from) {
  Vector<A, W> x;
  if constexpr (sizeof x == 16) {
    const float4 word = __ldcg(reinterpret_cast<const float4*>(from));
    memcpy(&x, &word, sizeof x);
  } else {
#pragma unroll
    for (int e = 0; e < W; ++e) x.v[e] = __ldcg(from + e);
  }
  return x;
}

/// Adds `count` arrays (parts) of `words` words each, in order, in f64. They begin `apart` elements apart. The block's
/// threads share the words: a thread calls fn(i, sums) for each of its words i, and has `flight` loads in flight.
template <int flight, int W, class A, class Fn>
__device__ inline void add_parts(const A* parts, int count, int64_t apart, int64_t words, Fn fn) {
  const int threads = int(blockDim.x * blockDim.y);
#pragma unroll 1
  for (int64_t i = threadIdx.y * blockDim.x + threadIdx.x; i < words; i += threads) {
    double sum[W] = {};
#pragma unroll 1
    for (int first = 0; first < count; first += flight) {
      Vector<A, W> part[flight];
#pragma unroll
      for (int u = 0; u < flight; ++u)
        if (first + u < count) part[u] = load_written<A, W>(parts + (first + u) * apart + i * W);
#pragma unroll
      for (int u = 0; u < flight; ++u) {
        if (first + u >= count) break;
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] += double(part[u].v[e]);
      }
    }
    fn(i, sum);
  }
}

/// Adds up the sums of all blocks in a row of the grid, and stores the results. Each block has written `kinds` arrays
/// of size() sums. All threads of all these blocks call it at their end.
template <int flight, class T, int V>
__device__ inline void finish_sums(const SumArgs<T>& args, const SumPlaces<Compute<T>, V>& places, int64_t columns,
                                   int kinds) {
  using A = Compute<T>;
  using Word = typename SumPlaces<A, V>::Word;
  constexpr int W = SumPlaces<A, V>::W;
  const int64_t size = places.size(columns), each = kinds * size;
  const unsigned group = blockIdx.x / group_blocks, groups = (gridDim.x + group_blocks - 1) / group_blocks,
                 members = min(unsigned(group_blocks), gridDim.x - group * group_blocks);
  if (!is_last(args.counters + 1 + group, members)) return;
  if (groups > 1) {  // the group's sums replace those of its first block
    A* const mine = args.sums + group * group_blocks * each;
    add_parts<flight, W>(mine, int(members), each, each / W, [&](int64_t i, const double(&sum)[W]) {
      Word word;
#pragma unroll
      for (int e = 0; e < W; ++e) word.v[e] = A(sum[e]);
      reinterpret_cast<Word*>(mine)[i] = word;
    });
    if (!is_last(args.counters, groups)) return;
  }
  add_parts<flight, W>(args.sums, int(groups > 1 ? groups : members), groups > 1 ? group_blocks * each : each, each / W,
                       [&](int64_t i, const double(&sum)[W]) {
                         const int64_t kind = i * W / size, column = places.column(i - kind * (size / W));
                         T* const to = kind == 0 ? args.to[0] : kind == 1 ? args.to[1] : args.to[2];
                         if (!to) return;
#pragma unroll
                         for (int e = 0; e < W; ++e)
                           if (column + e < columns) to[column + e] = T(A(sum[e]));
                       });
}
/// The number of loads that a thread of finish_sums() has in flight: one for each of 17 groups if registers allow it.
template <class Row> inline constexpr int finish_flight = Row::in_registers ? group_blocks + 1 : 6;

/// Returns x, or a copy if its rows could be read in words of 16 bytes but its address is not a multiple of 16: how a
/// sum rounds must not depend on the address of a tensor.
inline Tensor aligned(const Tensor& x) {
  if (!x.defined() || x.size(-1) * size_of(x.dtype()) % 16 != 0) return x;
  return reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0 ? x : x.clone();
}

}  // namespace lockstep::on_cuda
