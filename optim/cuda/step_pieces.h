#pragma once
// An optimizer kernel processes many tensors in chunks. These functions find the tensor of a chunk. Internal.
#include "optim/step_batch.h"
#include "tensor/cuda/element.h"

namespace lockstep::on_cuda {

/// Returns the entry of the tensor that contains the chunk. `pieces` has `count` entries, sorted by first_chunk.
template <class Piece> __device__ inline const Piece& piece_of(const Piece* pieces, int count, int64_t chunk) {
  int low = 0;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (pieces[middle].first_chunk <= chunk) low = middle;
    else high = middle;
  }
  return pieces[low];
}

/// Rounds `value` to T and back if `rounds` is set, as storing it in memory would.
template <class T> __device__ inline Compute<T> rounded(Compute<T> value, int32_t rounds) {
  return rounds ? Compute<T>(T(value)) : value;
}

}  // namespace lockstep::on_cuda
