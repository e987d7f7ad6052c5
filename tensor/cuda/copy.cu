// Copies between any strides and dtypes, and fill. Memory bound: a copy moves 16 bytes per thread if both sides are
// contiguous along the same dimension; transposes go through tiles of shared memory, so both sides are read and written
// in whole sectors, 16 bytes per thread where both sides allow it.
#include <bit>

#include "tensor/cuda/pointwise.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int64_t worth_a_copy = 1 << 16;  // elements; for larger tensors an extra copy pays

template <class T> struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

struct Moved {
  template <class C> __device__ C operator()(C x) const { return x; }
};

/// A transpose to[.., i, j] = from[.., j, i]. Index i has `tall` values and is contiguous in the source. Index j has
/// `wide` values and is contiguous in the output.
struct Transpose {
  Nest<2> matrices;
  int64_t tall, wide, from_stride, to_stride;  // from_stride: of j in the source; to_stride: of i in the output
  int64_t tiles_down, tiles_across, tiles;
  bool in_vectors;  // all rows of both sides are whole, aligned vectors of 16 bytes
};

/// Side of the square tiles of a transpose.
template <class T> inline constexpr int tile_side = sizeof(T) <= 4 ? 64 : 32;

template <class T> __global__ void __launch_bounds__(256) transpose_kernel(const T* from, T* to, Transpose transpose) {
  constexpr int side = tile_side<T>, V = 16 / sizeof(T), pieces = side / V;
  constexpr int E = sizeof(T) < 4 ? 4 / sizeof(T) : 1;  // elements of a word of shared memory
  using Word = Vector<T, E>;
  LOCKSTEP_SHARED(Word, tile, [side][side / E + 1]);  // words of a column fall into different banks
  for (int64_t t = blockIdx.x; t < transpose.tiles; t += gridDim.x) {
    const int64_t in_matrix = transpose.tiles_down * transpose.tiles_across, matrix = t / in_matrix,
                  rest = t - matrix * in_matrix;
    const int64_t i0 = rest % transpose.tiles_down * side, j0 = rest / transpose.tiles_down * side;
    int64_t at[2] = {i0 + j0 * transpose.from_stride, i0 * transpose.to_stride + j0};
    transpose.matrices.find(matrix, at);
    const T* const source = from + at[0];
    T* const target = to + at[1];
    const int down = int(min(int64_t(side), transpose.tall - i0)),
              across = int(min(int64_t(side), transpose.wide - j0));
    if (transpose.in_vectors) {
      constexpr int loads = side * pieces / 256;
      Vector<T, V> v[loads];
#pragma unroll
      for (int u = 0; u < loads; ++u) {
        const int n = int(threadIdx.x) + u * 256, i = n % pieces * V, j = n / pieces;
        if (i < down && j < across)
          v[u] = *reinterpret_cast<const Vector<T, V>*>(source + i + j * transpose.from_stride);
      }
#pragma unroll
      for (int u = 0; u < loads; ++u) {
        const int n = int(threadIdx.x) + u * 256, i = n % pieces * V, j = n / pieces;
        if (i >= down || j >= across) continue;
#pragma unroll
        for (int w = 0; w < V / E; ++w) {
          Word word;
#pragma unroll
          for (int e = 0; e < E; ++e) word.v[e] = v[u].v[w * E + e];
          tile[j][i / E + w] = word;
        }
      }
      __syncthreads();
      for (int n = threadIdx.x; n < side / E * pieces; n += 256) {
        const int i = n / pieces * E, j = n % pieces * V;
        if (i >= down || j >= across) continue;
        Word words[V];
#pragma unroll
        for (int k = 0; k < V; ++k) words[k] = tile[j + k][i / E];
#pragma unroll
        for (int e = 0; e < E; ++e) {
          Vector<T, V> column;
#pragma unroll
          for (int k = 0; k < V; ++k) column.v[k] = words[k].v[e];
          *reinterpret_cast<Vector<T, V>*>(target + (i + e) * transpose.to_stride + j) = column;
        }
      }
    } else {
      constexpr int rows = 256 / side;
      const int x = threadIdx.x % side, y = threadIdx.x / side;
#pragma unroll
      for (int k = 0; k < side; k += rows) {
        if (x < down && y + k < across) tile[y + k][x / E].v[x % E] = source[x + (y + k) * transpose.from_stride];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < side; k += rows) {
        if (y + k < down && x < across) target[(y + k) * transpose.to_stride + x] = tile[x][(y + k) / E].v[(y + k) % E];
      }
    }
    __syncthreads();
  }
}

/// True if the copy is a transpose: the output and the source are contiguous along different dimensions. Then fills in
/// `transpose`, except for the numbers of tiles and in_vectors.
bool find_transpose(const Tensor& source, const Tensor& out, Transpose& transpose) {
  Nest<2> nest;
  for (int d = 0; d < out.dim(); ++d) nest.insert(out.shape()[d], {source.strides()[d], out.strides()[d]}, 1);
  nest.join();
  const int last = nest.rank - 1;
  if (last < 1 || nest.stride[last][1] != 1 || nest.stride[last][0] <= 1) return false;
  for (int across = last - 1; across >= 0; --across) {
    if (nest.stride[across][0] != 1 || nest.size[across] < 4) continue;
    transpose.tall = nest.size[across], transpose.to_stride = nest.stride[across][1];
    transpose.wide = nest.size[last], transpose.from_stride = nest.stride[last][0];
    for (int d = 0; d < last; ++d) {
      if (d == across) continue;
      const int at = transpose.matrices.rank++;
      transpose.matrices.size[at] = nest.size[d];
      std::copy(nest.stride[d], nest.stride[d] + 2, transpose.matrices.stride[at]);
    }
    transpose.matrices.prepare();
    return true;
  }
  return false;
}

template <class T> void copy_same(const Tensor& source, const Tensor& out) {
  Transpose transpose;
  if (!find_transpose(source, out, transpose)) return run_pointwise<T, T>("copy", Moved(), out, source);
  transpose.tiles_down = (transpose.tall + tile_side<T> - 1) / tile_side<T>;
  transpose.tiles_across = (transpose.wide + tile_side<T> - 1) / tile_side<T>;
  transpose.tiles = transpose.tiles_down * transpose.tiles_across * transpose.matrices.count();
  const T* const from = static_cast<const T*>(source.raw_data());
  T* const to = static_cast<T*>(out.raw_data());
  constexpr int V = 16 / sizeof(T);
  int64_t together = transpose.tall | transpose.wide | transpose.from_stride | transpose.to_stride;
  for (int d = 0; d < transpose.matrices.rank; ++d)
    together |= transpose.matrices.stride[d][0] | transpose.matrices.stride[d][1];
  transpose.in_vectors = together % V == 0 && is_aligned(from, V) && is_aligned(to, V);
  cuda::launch({"copy", dim3(cuda::blocks_for(transpose.tiles, 1)), dim3(256)}, transpose_kernel<T>, from, to,
               transpose);
}

}  // namespace

void copy(const Tensor& source, Tensor& out) {
  if (out.numel() == 0) return;
  if (source.dtype() == out.dtype()) return dispatch_width(out.dtype(), [&]<class T> { copy_same<T>(source, out); });
  // A large transpose that also converts the dtype takes two steps: transpose, then convert, or the other way round.
  if (Transpose transpose; out.numel() >= worth_a_copy && find_transpose(source, out, transpose)) {
    if (out.is_contiguous()) return copy(source.contiguous(), out);
    if (source.is_contiguous()) return copy(source.to(out.dtype()), out);
  }
  dispatch_all(source.dtype(), "copy", [&]<class From> {
    dispatch_all(out.dtype(), "copy", [&]<class To> {
      if constexpr (!std::is_same_v<From, To>) run_pointwise<To, From>("copy", Moved(), out, source);
    });
  });
}

void fill(Tensor& out, Scalar value) {
  if (out.numel() == 0) return;
  dispatch_all(out.dtype(), "fill", [&]<class T> {
    // All dtypes of one width share a kernel, which writes the bit pattern of the value.
    dispatch_width(out.dtype(), [&]<class Bits> {
      if constexpr (sizeof(Bits) == sizeof(T))
        run_pointwise<Bits>("fill", Constant<Bits>{std::bit_cast<Bits>(value.to<T>())}, out);
    });
  });
}

}  // namespace lockstep::on_cuda
