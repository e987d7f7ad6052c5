// The kernels of an optimizer step except the updates themselves (optim/step_batch.h). One stores numbers that the
// host passes. The others compute the norm of all gradients, and check them for infinities and NaN in the same pass.
// Memory bound: every gradient is read once, 16 bytes at a time, with all loads of a thread's part of a chunk in
// flight. The order of every sum depends on the sizes of the gradients alone.
#include <cmath>

#include "optim/cuda/step_pieces.h"
#include "optim/step_kernels.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned full_warp = 0xffffffffu;

/// 64-bit words that the host passes to store_kernel as parameters.
struct Words {
  static constexpr int limit = 480;  // a launch may pass 4096 bytes of parameters
  uint64_t w[limit];
};
__global__ void __launch_bounds__(threads) store_kernel(Words words, uint64_t* to, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = words.w[i];
}

/// Returns the sum of (scale * x)^2 over this thread's elements x of a chunk. Sets `bad` if one of them is not finite.
template <class T>
__device__ double squares_of(const SquarePiece& piece, int64_t begin, double scale, int32_t rounds, bool& bad) {
  constexpr int V = vector_length<T>, loads = int(StepBatch::chunk / (threads * V));
  const T* const x = static_cast<const T*>(piece.x);
  const int64_t end = min(begin + StepBatch::chunk, piece.n);
  const Compute<T> factor = Compute<T>(scale);
  double sum = 0;
  const auto add = [&](T value) {
    const Compute<T> raw = Compute<T>(value);
    bad |= !(raw - raw == 0);  // x - x is NaN for infinities too
    const double scaled = double(rounded<T>(raw * factor, rounds));
    sum += scaled * scaled;
  };
  const int64_t first = begin + int64_t(threadIdx.x) * V;
  if (piece.is_aligned && end - begin == StepBatch::chunk) {
    Vector<T, V> v[loads];
#pragma unroll
    for (int u = 0; u < loads; ++u) v[u] = *reinterpret_cast<const Vector<T, V>*>(x + first + u * threads * V);
#pragma unroll
    for (int u = 0; u < loads; ++u) {
#pragma unroll
      for (int j = 0; j < V; ++j) add(v[u].v[j]);
    }
  } else {
    for (int64_t i = first; i < end; i += int64_t(threads) * V) {
      for (int j = 0; j < V && i + j < end; ++j) add(x[i + j]);
    }
  }
  return sum;
}

__global__ void __launch_bounds__(threads)
    square_sums_kernel(const SquarePiece* pieces, int count, int64_t chunks, StepControl* control, double* sums) {
  LOCKSTEP_SHARED(double, of_warp, [threads / 32]);
  const double scale = control->scale;
  const int32_t rounds = control->rounds;
  bool bad = false;
  // A block takes neighbouring chunks, so it must search for the tensor of its first chunk only.
  const int64_t each = (chunks + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each,
                last = min(chunks, first + each);
  if (first >= last) return;
  const SquarePiece* at = &piece_of(pieces, count, first);
  for (int64_t c = first; c < last; ++c) {
    while (at + 1 < pieces + count && at[1].first_chunk <= c) ++at;
    const SquarePiece& piece = *at;
    const int64_t begin = (c - piece.first_chunk) * StepBatch::chunk;
    double sum = 0;
    switch (piece.dtype) {
      case f32: sum = squares_of<float>(piece, begin, scale, rounds, bad); break;
      case f64: sum = squares_of<double>(piece, begin, scale, rounds, bad); break;
      case f16: sum = squares_of<Half>(piece, begin, scale, rounds, bad); break;
      default: sum = squares_of<BFloat16>(piece, begin, scale, rounds, bad); break;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
      for (int w = 1; w < threads / 32; ++w) sum += of_warp[w];
      sums[piece.at + c - piece.first_chunk] = sum;
    }
    __syncthreads();
  }
  if (bad) atomicMax(&control->found, 1);
}

__device__ double sum_of(const NormPiece& piece, const double* sums) {
  double sum = 0;
#pragma unroll 8
  for (int64_t c = 0; c < piece.count; ++c) sum += sums[piece.first + c];
  return sum;
}

/// totals[i] = the sum of `sums` over the chunks of tensor i. Launched with one block.
__global__ void __launch_bounds__(threads)
    add_sums_kernel(const NormPiece* pieces, int64_t count, const double* sums, double* totals) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) totals[i] = sum_of(pieces[i], sums);
}

/// Computes the norm of all gradients and the clip factor, and decides whether the step is skipped. Launched with one
/// block. Adds the numbers in the same order as optim/clip.cpp.
__global__ void __launch_bounds__(threads) take_norm_kernel(const NormPiece* pieces, int64_t count, const double* sums,
                                                            double* squares, StepControl* control) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const NormPiece piece = pieces[i];
    const double root = std::sqrt(sum_of(piece, sums)), norm = piece.is_wide ? root : double(float(root));
    squares[i] = norm * norm;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  double total = 0;
#pragma unroll 8
  for (int64_t i = 0; i < count; ++i) total += squares[i];
  const double norm = std::sqrt(total), factor = control->max_norm / (norm + 1e-6);
  control->norm = norm;
  if (control->max_norm > 0 && !(factor >= 1)) control->clip = factor;
  if (!control->skips || !control->found) return;
  control->skip = 1;
  ++control->skipped;
}

}  // namespace

void store_numbers(void* to, const void* from, size_t bytes) {
  const auto* source = static_cast<const uint64_t*>(from);
  auto* target = static_cast<uint64_t*>(to);
  for (size_t left = bytes / sizeof *source; left > 0;) {
    const size_t count = std::min(left, size_t(Words::limit));
    Words words{};
    std::memcpy(words.w, source, count * sizeof *source);
    cuda::launch({"step numbers", dim3(1), dim3(threads)}, store_kernel, words, target, int(count));
    source += count, target += count, left -= count;
  }
}

void square_sums(const void* pieces, int count, int64_t chunks, void* numbers, double* sums) {
  cuda::launch({"sums of squares", dim3(cuda::blocks_for(chunks, 1)), dim3(threads)}, square_sums_kernel,
               static_cast<const SquarePiece*>(pieces), count, chunks, static_cast<StepControl*>(numbers), sums);
}

void add_sums(const void* pieces, int64_t count, const double* sums, double* totals) {
  cuda::launch({"sums of tensors", dim3(1), dim3(threads)}, add_sums_kernel, static_cast<const NormPiece*>(pieces),
               count, sums, totals);
}

void take_norm(const void* pieces, int64_t count, const double* sums, double* squares, void* numbers) {
  cuda::launch({"norm", dim3(1), dim3(threads)}, take_norm_kernel, static_cast<const NormPiece*>(pieces), count, sums,
               squares, static_cast<StepControl*>(numbers));
}

}  // namespace lockstep::on_cuda
