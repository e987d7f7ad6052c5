#pragma once
// Merge sort of lines of entries (key, place) by key and, for equal keys, by place, so the sort is stable and the
// result independent of thread timing. A block sorts each tile in shared memory (bitonic sort). Then sorted runs are
// merged in pairs. Each thread writes a few entries of the merged run, and finds by bisection from which entries they
// come. Memory bound: one pass over keys and places each time that the length of the runs doubles.
#include "tensor/cuda/simt.h"

namespace lockstep::on_cuda {

/// The number of threads in a block, and the number of entries in the tile that a block sorts.
inline constexpr int sort_threads = 256, sort_tile = 1024;

/// Keys and, for each key, its index in the unsorted line (place).
template <class K> struct Entries {
  K* key;
  uint32_t* place;
};

/// The size of the problem: `lines` lines of n entries each, one after another in memory.
struct SortLines {
  int64_t lines, n;
};

/// True if entry `at` is the first with its key. The key ~0 marks an entry without a place to add to.
template <class K> __device__ bool is_head(const Entries<K>& sorted, int64_t at) {
  return sorted.key[at] != ~K(0) && (at == 0 || sorted.key[at - 1] != sorted.key[at]);
}

/// True if entry a comes before entry b: ordered by key, and by index among equal keys.
template <class K> __device__ inline bool is_before(K a, uint32_t a_place, K b, uint32_t b_place) {
  return a != b ? a < b : a_place < b_place;
}

/// Bitonic sort of keys[0 .. size) in shared memory; size is a power of two. All threads of the block call it; it
/// begins and ends with a barrier.
template <class K> __device__ inline void sort_shared(K* keys, uint32_t* places, int size) {
  for (int length = 2; length <= size; length *= 2) {
    for (int step = length / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = int(threadIdx.x); i < size / 2; i += int(blockDim.x)) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const bool up = (low & length) == 0;
        const K a = keys[low], b = keys[high];
        const uint32_t pa = places[low], pb = places[high];
        if (is_before(b, pb, a, pa) == up) keys[low] = b, keys[high] = a, places[low] = pb, places[high] = pa;
      }
    }
  }
  __syncthreads();
}

/// Sorts every tile of every line and writes the first `keep` entries of each tile, one tile after the other.
/// load(line, i, key, place) sets key and place to those of entry i. An output line has out_n entries.
template <class K, class Load>
__global__ void __launch_bounds__(sort_threads)
    sort_tiles_kernel(Load load, SortLines from, int keep, int64_t out_n, Entries<K> out) {
  LOCKSTEP_SHARED(K, keys, [sort_tile]);
  LOCKSTEP_SHARED(uint32_t, places, [sort_tile]);
  const int64_t tiles = (from.n + sort_tile - 1) / sort_tile;
  for (int64_t item = blockIdx.x; item < from.lines * tiles; item += gridDim.x) {
    const int64_t line = item / tiles, tile = item - line * tiles, first = tile * sort_tile, left = from.n - first;
    const int count = left < sort_tile ? int(left) : sort_tile;
    int size = 2;
    while (size < count) size *= 2;
    for (int i = int(threadIdx.x); i < size; i += sort_threads) {
      keys[i] = ~K(0), places[i] = ~uint32_t(0);  // padding sorts last
      if (i < count) load(line, first + i, keys[i], places[i]);
    }
    sort_shared(keys, places, size);
    const int kept = count < keep ? count : keep;
    for (int i = int(threadIdx.x); i < kept; i += sort_threads) {
      const int64_t at = line * out_n + tile * keep + i;
      out.key[at] = keys[i], out.place[at] = places[i];
    }
    __syncthreads();
  }
}

/// Merges neighbouring sorted runs of `run` entries in pairs. Each thread writes `piece` entries of a merged run.
template <class K>
__global__ void __launch_bounds__(sort_threads)
    merge_kernel(Entries<K> from, Entries<K> to, SortLines lines, int64_t run) {
  constexpr int piece = 8;
  const int64_t pieces = (lines.n + piece - 1) / piece;
  for (int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; item < lines.lines * pieces;
       item += int64_t(gridDim.x) * blockDim.x) {
    const int64_t line = item / pieces, at = (item - line * pieces) * piece, start = line * lines.n;
    // Two runs a and b, and the offset `into` of this thread's entries in their merged run. These entries never belong
    // to two pairs of runs, because `run` is a multiple of `piece`.
    const int64_t pair = at / (2 * run) * 2 * run, middle = min(pair + run, lines.n),
                  end = min(pair + 2 * run, lines.n), into = at - pair;
    const K *a = from.key + start + pair, *b = from.key + start + middle;
    const uint32_t *pa = from.place + start + pair, *pb = from.place + start + middle;
    const int64_t na = middle - pair, nb = end - middle;
    int64_t low = max(int64_t(0), into - nb), high = min(into, na);
    while (low < high) {  // find how many entries before this piece come from a
      const int64_t i = (low + high) / 2, j = into - 1 - i;
      if (is_before(b[j], pb[j], a[i], pa[i])) high = i;
      else low = i + 1;
    }
    int64_t i = low, j = into - low;
    const int count = int(min(int64_t(piece), end - at));
    for (int k = 0; k < count; ++k) {
      const bool take_b = i == na || (j < nb && is_before(b[j], pb[j], a[i], pa[i]));
      to.key[start + at + k] = take_b ? b[j] : a[i];
      to.place[start + at + k] = take_b ? pb[j] : pa[i];
      take_b ? ++j : ++i;
    }
  }
}

/// Calls fn(K(0)), where the key type K is uint32_t if it holds all numbers below n and leaves ~0 free, else uint64_t.
template <class Fn> void dispatch_key(int64_t n, Fn&& fn) {
  n < int64_t(UINT32_MAX) ? fn(uint32_t(0)) : fn(uint64_t(0));
}

/// Throws if `count` entries are too many for the 32-bit indices in Entries::place.
inline void check_count(const char* op, int64_t count) {
  LOCKSTEP_CHECK(count < int64_t(1) << 32, "[", op, "] expected fewer than 2^32 indices on cuda, got ", count,
                 "; split them over several calls");
}

/// Two buffers of `count` entries; merge passes alternate between them.
template <class K> struct SortBuffers {
  explicit SortBuffers(int64_t count)
      : key_memory(size_t(2 * count) * sizeof(K)),
        place_memory(size_t(2 * count) * sizeof(uint32_t)),
        first{key_memory.template as<K>(), place_memory.template as<uint32_t>()},
        second{first.key + count, first.place + count} {}
  cuda::Scratch key_memory, place_memory;
  Entries<K> first, second;
};

/// Sorts lines of entries. load() returns an entry of the input. The result is in one of the two buffers.
template <class K, class Load>
Entries<K> sort_lines(const char* op, const Load& load, const SortLines& lines, SortBuffers<K>& buffers) {
  const int64_t tiles = (lines.n + sort_tile - 1) / sort_tile;
  cuda::launch({op, dim3(cuda::blocks_for(lines.lines * tiles, 1)), dim3(sort_threads)}, sort_tiles_kernel<K, Load>,
               load, lines, sort_tile, lines.n, buffers.first);
  Entries<K> from = buffers.first, to = buffers.second;
  for (int64_t run = sort_tile; run < lines.n; run *= 2) {
    const int64_t pieces = lines.lines * ((lines.n + 7) / 8);
    cuda::launch({op, dim3(cuda::blocks_for(pieces, sort_threads)), dim3(sort_threads)}, merge_kernel<K>, from, to,
                 lines, run);
    std::swap(from, to);
  }
  return from;
}

}  // namespace lockstep::on_cuda
