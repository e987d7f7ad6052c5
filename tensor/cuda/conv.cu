// Convolution as matrix products whose operands are gathered on the way into shared memory, for every shape, memory
// layout and dtype; no im2col buffer is made. C and K are the channels of one group:
//
//                 rows (M)   columns (N)   depth                          sums over
//   forward       K          images P Q    C R S                          x (gathered) w
//   grad_input    C          images H W    K R S                          grad (gathered) w; no atomics
//   grad_weight   K          C R S         images P Q, in fixed parts     grad, x (gathered); parts added in order
//
// These kernels compute a convolution if no library of an extension does (tensor/conv_backend.h). Without cuDNN they
// compute all of them; with cuDNN, those of f64 and those that it does not support.
//
// Compute bound: 2 M N depth operations on the f32 units (f64 units for f64). A block computes 64 x 64 results in steps
// of 16 along the depth, a thread 4 x 4 of them: 8 reads of shared memory for 16 multiplications.
#include "tensor/conv_backend.h"
#include "tensor/cuda/nest.h"
#include "tensor/cuda/warp.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"

namespace lockstep::on_cuda {
namespace {

constexpr int tile = 64, step = 16, threads = 256, line = tile + 4;

/// The sizes of a convolution, with strides for images in either layout and fast divisors for index arithmetic.
struct Sizes : ConvSizes {
  int64_t stride[2], padding[2], dilation[2];
  int64_t x_stride[4], y_stride[4];
  AnyDivider by_s, by_rs, by_q, by_pq, by_w, by_hw;

  Sizes(const Tensor& x, const Tensor& weight, const Tensor& y, const ConvArgs& args)
      : Sizes(x, weight, y, args, std::max({x.numel(), y.numel(), weight.numel()}) < max_narrow) {}

  int64_t depth() const { return c * r * s; }
  int64_t places() const { return n * p * q; }

 private:
  Sizes(const Tensor& x, const Tensor& weight, const Tensor& y, const ConvArgs& args, bool narrow)
      : ConvSizes(of(x, weight, y, args.groups)),
        by_s(s, narrow),
        by_rs(r * s, narrow),
        by_q(q, narrow),
        by_pq(p * q, narrow),
        by_w(w, narrow),
        by_hw(h * w, narrow) {
    for (int d = 0; d < 2; ++d)
      stride[d] = args.stride[d], padding[d] = args.padding[d], dilation[d] = args.dilation[d];
    for (int d = 0; d < 4; ++d) x_stride[d] = x.strides()[d], y_stride[d] = y.strides()[d];
  }
};

// Forward, GradInput and GradWeight define the three matrix products. along(d) splits an index of the depth into a
// Triple, column(j) an index of the columns; one Triple serves several elements. a(group, m, d, along) returns an
// element of the left operand, and b(group, along, column) one of the right. put(piece, group, m, j, column, sum)
// stores a result.

/// (image, row, column) or (channel, r, s).
struct Triple {
  int64_t outer, y, x;
};

__device__ inline Triple split(int64_t n, const AnyDivider& by_inner, const AnyDivider& by_both) {
  const int64_t outer = by_both.divide(n), rest = n - outer * by_both.by, y = by_inner.divide(rest);
  return {outer, y, rest - y * by_inner.by};
}

template <class T> struct Forward {
  using A = Compute<T>;
  Sizes z;
  const T *x, *w, *bias;
  T* out;

  __device__ int64_t rows() const { return z.k; }
  __device__ int64_t columns() const { return z.n * z.p * z.q; }
  __device__ int64_t depth() const { return z.c * z.r * z.s; }
  __device__ Triple along(int64_t d) const { return split(d, z.by_s, z.by_rs); }
  __device__ Triple column(int64_t j) const { return split(j, z.by_q, z.by_pq); }
  __device__ A a(int64_t group, int64_t m, int64_t d, const Triple&) const {
    return load(w + (group * z.k + m) * (z.c * z.r * z.s) + d);
  }
  __device__ A b(int64_t group, const Triple& d, const Triple& at) const {
    const int64_t y = at.y * z.stride[0] + d.y * z.dilation[0] - z.padding[0],
                  column = at.x * z.stride[1] + d.x * z.dilation[1] - z.padding[1];
    if (y < 0 || y >= z.h || column < 0 || column >= z.w) return 0;
    return load(x + at.outer * z.x_stride[0] + (group * z.c + d.outer) * z.x_stride[1] + y * z.x_stride[2] +
                column * z.x_stride[3]);
  }
  __device__ void put(int64_t, int64_t group, int64_t m, int64_t, const Triple& at, A sum) const {
    const int64_t k = group * z.k + m;
    store(out + at.outer * z.y_stride[0] + k * z.y_stride[1] + at.y * z.y_stride[2] + at.x * z.y_stride[3],
          bias ? sum + load(bias + k) : sum);
  }
};

template <class T> struct GradInput {
  using A = Compute<T>;
  Sizes z;
  const T *grad, *w;
  T* grad_x;

  __device__ int64_t rows() const { return z.c; }
  __device__ int64_t columns() const { return z.n * z.h * z.w; }
  __device__ int64_t depth() const { return z.k * z.r * z.s; }
  __device__ Triple along(int64_t d) const { return split(d, z.by_s, z.by_rs); }
  __device__ Triple column(int64_t j) const { return split(j, z.by_w, z.by_hw); }
  __device__ A a(int64_t group, int64_t m, int64_t, const Triple& d) const {
    return load(w + (((group * z.k + d.outer) * z.c + m) * z.r + d.y) * z.s + d.x);
  }
  __device__ A b(int64_t group, const Triple& d, const Triple& at) const {
    // Output (p, q) used this pixel with weight (r, s) if p * stride = pixel + padding - r * dilation in both dims.
    const int64_t y = at.y + z.padding[0] - d.y * z.dilation[0], x = at.x + z.padding[1] - d.x * z.dilation[1];
    if (y < 0 || x < 0) return 0;
    const int64_t p = z.stride[0] == 1 ? y : y / z.stride[0], q = z.stride[1] == 1 ? x : x / z.stride[1];
    if (p >= z.p || q >= z.q || p * z.stride[0] != y || q * z.stride[1] != x) return 0;
    return load(grad + at.outer * z.y_stride[0] + (group * z.k + d.outer) * z.y_stride[1] + p * z.y_stride[2] +
                q * z.y_stride[3]);
  }
  __device__ void put(int64_t, int64_t group, int64_t m, int64_t, const Triple& at, A sum) const {
    store(grad_x + at.outer * z.x_stride[0] + (group * z.c + m) * z.x_stride[1] + at.y * z.x_stride[2] +
              at.x * z.x_stride[3],
          sum);
  }
};

template <class T> struct GradWeight {
  using A = Compute<T>;
  Sizes z;
  const T *grad, *x;
  A* pieces;  // (pieces, groups, K, C R S)

  __device__ int64_t rows() const { return z.k; }
  __device__ int64_t columns() const { return z.c * z.r * z.s; }
  __device__ int64_t depth() const { return z.n * z.p * z.q; }
  __device__ Triple along(int64_t d) const { return split(d, z.by_q, z.by_pq); }
  __device__ Triple column(int64_t j) const { return split(j, z.by_s, z.by_rs); }
  __device__ A a(int64_t group, int64_t m, int64_t, const Triple& d) const {
    return load(grad + d.outer * z.y_stride[0] + (group * z.k + m) * z.y_stride[1] + d.y * z.y_stride[2] +
                d.x * z.y_stride[3]);
  }
  __device__ A b(int64_t group, const Triple& d, const Triple& at) const {
    const int64_t y = d.y * z.stride[0] + at.y * z.dilation[0] - z.padding[0],
                  column = d.x * z.stride[1] + at.x * z.dilation[1] - z.padding[1];
    if (y < 0 || y >= z.h || column < 0 || column >= z.w) return 0;
    return load(x + d.outer * z.x_stride[0] + (group * z.c + at.outer) * z.x_stride[1] + y * z.x_stride[2] +
                column * z.x_stride[3]);
  }
  __device__ void put(int64_t piece, int64_t group, int64_t m, int64_t j, const Triple&, A sum) const {
    pieces[((piece * z.groups + group) * z.k + m) * columns() + j] = sum;
  }
};

/// A block computes a tile of 64 x 64 results of one group, summed over one of `pieces` parts of the depth. In
/// blockIdx.x the tile's column varies fastest, then its row, the part and the group.
template <class Problem>
__global__ void __launch_bounds__(threads) product_kernel(Problem problem, int64_t row_tiles, int64_t pieces) {
  using A = typename Problem::A;
  LOCKSTEP_SHARED(A, left, [step][line]);
  LOCKSTEP_SHARED(A, right, [step][line]);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int64_t column_tiles = (problem.columns() + tile - 1) / tile, unit = blockIdx.x / column_tiles,
                j0 = blockIdx.x % column_tiles * tile;
  const int64_t m0 = unit % row_tiles * tile, piece = unit / row_tiles % pieces, group = unit / row_tiles / pieces;
  const int64_t depth = problem.depth(), begin = depth * piece / pieces, end = depth * (piece + 1) / pieces;

  Triple at[4];  // columns tx + 16 i: both those that this thread loads and those that it computes
#pragma unroll
  for (int i = 0; i < 4; ++i)
    at[i] = j0 + tx + 16 * i < problem.columns() ? problem.column(j0 + tx + 16 * i) : Triple{0, 0, 0};
  A sum[4][4] = {};
  for (int64_t d0 = begin; d0 < end; d0 += step) {
    __syncthreads();  // the operands of the previous step have been read
    // Neighbouring lanes read neighbours along the depth of the left operand and neighbouring columns of the right one.
    const int64_t da = d0 + tx, db = d0 + ty;
    const Triple place_a = da < end ? problem.along(da) : Triple{0, 0, 0},
                 place_b = db < end ? problem.along(db) : Triple{0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t m = m0 + ty + 16 * i, j = j0 + tx + 16 * i;
      left[tx][ty + 16 * i] = da < end && m < problem.rows() ? problem.a(group, m, da, place_a) : A(0);
      right[ty][tx + 16 * i] = db < end && j < problem.columns() ? problem.b(group, place_b, at[i]) : A(0);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < step; ++d) {
      A a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = left[d][ty + 16 * i], b[i] = right[d][tx + 16 * i];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = m0 + ty + 16 * i, column = j0 + tx + 16 * j;
      if (m < problem.rows() && column < problem.columns()) problem.put(piece, group, m, column, at[j], sum[i][j]);
    }
  }
}

/// to[i] = the sum over pieces of from[piece][i], in order.
template <class T>
__global__ void __launch_bounds__(threads)
    add_pieces_kernel(const Compute<T>* from, int64_t pieces, int64_t count, T* to) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    Compute<T> sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += from[piece * count + i];
    store(to + i, sum);
  }
}

/// grad_bias, with one block per channel. Threads read neighbouring pixels.
template <class T> __global__ void __launch_bounds__(threads) bias_kernel(const T* grad, Sizes z, T* grad_bias) {
  const int64_t k = blockIdx.x, count = z.n * z.p * z.q;
  Compute<T> sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += threads) {
    const Triple at = split(i, z.by_q, z.by_pq);
    sum += load(grad + at.outer * z.y_stride[0] + k * z.y_stride[1] + at.y * z.y_stride[2] + at.x * z.y_stride[3]);
  }
  sum = group_sum<threads>(sum);
  if (threadIdx.x == 0) store(grad_bias + k, sum);
}

int64_t tiles_of(int64_t n) { return (n + tile - 1) / tile; }

template <class Problem>
void multiply(const char* op, const Problem& problem, int64_t rows, int64_t columns, int64_t groups,
              int64_t pieces = 1) {
  const int64_t blocks = tiles_of(rows) * tiles_of(columns) * groups * pieces;
  if (blocks == 0) return;
  cuda::launch({op, dim3(cuda::blocks_of(op, blocks)), dim3(threads)}, product_kernel<Problem>, problem, tiles_of(rows),
               pieces);
}

}  // namespace

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  if (out.numel() == 0 || by_library(x.device(), &ConvBackend::forward, x, w, bias, args, out)) return;
  const Sizes z(x, w, out, args);
  for_floats("conv2d", x, [&]<class T> {
    multiply("conv2d", Forward<T>{z, x.data<T>(), w.data<T>(), data_or_null<T>(bias), out.data<T>()}, z.k, z.places(),
             z.groups);
  });
}

void conv2d_grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  if (grad_x.numel() == 0 || by_library(grad.device(), &ConvBackend::grad_input, grad, w, args, grad_x)) return;
  const Sizes z(grad_x, w, grad, args);
  for_floats("conv2d_grad_input", grad, [&]<class T> {
    multiply("conv2d_grad_input", GradInput<T>{z, grad.data<T>(), w.data<T>(), grad_x.data<T>()}, z.c, z.n * z.h * z.w,
             z.groups);
  });
}

void conv2d_grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  const char* const op = "conv2d_grad_weight";
  const Sizes z(x, grad_w, grad, args);
  Tensor no_bias;  // bias_kernel computes its gradient
  const bool done = by_library(x.device(), &ConvBackend::grad_weight, grad, x, args, grad_w, no_bias);
  // Divides the depth into parts to get up to about 512 blocks, but no part has fewer than 256 elements. The number of
  // parts depends only on the shape.
  const int64_t blocks = std::max<int64_t>(1, tiles_of(z.k) * tiles_of(z.depth()) * z.groups);
  const int64_t pieces = std::clamp<int64_t>(512 / blocks, 1, std::max<int64_t>(1, z.places() / 256));
  for_floats("conv2d_grad_weight", grad, [&]<class T> {
    using A = Compute<T>;
    if (!done) {
      const cuda::Scratch sums(size_t(pieces * grad_w.numel()) * sizeof(A));
      multiply(op, GradWeight<T>{z, grad.data<T>(), x.data<T>(), sums.as<A>()}, z.k, z.depth(), z.groups, pieces);
      cuda::launch({op, dim3(cuda::blocks_for(grad_w.numel(), threads)), dim3(threads)}, add_pieces_kernel<T>,
                   sums.as<A>(), pieces, grad_w.numel(), grad_w.data<T>());
    }
    if (grad_bias.defined())
      cuda::launch({op, dim3(cuda::blocks_of(op, grad_bias.numel())), dim3(threads)}, bias_kernel<T>, grad.data<T>(), z,
                   grad_bias.data<T>());
  });
}

}  // namespace lockstep::on_cuda
