#pragma once
// For Ulysses and ring attention: checks of their arguments, and the keys of their random numbers. Internal.

#include "autograd/autocast.h"
#include "parallel/sequence/attention.h"

namespace lockstep::sequence {

/// Error unless there is a group, q, k and v have the same batch size, number of tokens, head size and dtype, and the
/// number of heads of q is a multiple of that of k.
inline void check_parts(const char* op, const Variable& q, const Variable& k, const Variable& v,
                        const std::shared_ptr<dist::ProcessGroup>& group) {
  LOCKSTEP_CHECK(group, "[", op, "] expected a process group, got none; pass one");
  LOCKSTEP_CHECK(q.dim() == 4 && k.dim() == 4 && v.shape() == k.shape() && k.size(0) == q.size(0) &&
                     k.size(2) == q.size(2) && k.size(3) == q.size(3),
                 "[", op, "] expected q (B, H, T, D) and k, v (B, G, T, D) of the same tokens, got ", q.shape(), ", ",
                 k.shape(), " and ", v.shape(), "; reshape them");
  LOCKSTEP_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "[", op,
                 "] expected the heads of q to be a multiple of the heads of k, got ", q.size(1), " and ", k.size(1));
  LOCKSTEP_CHECK(q.dtype() == k.dtype() && q.dtype() == v.dtype(), "[", op, "] expected q, k and v of one dtype, got ",
                 q.dtype(), ", ", k.dtype(), " and ", v.dtype(), "; convert them with .to(dtype)");
}

/// Returns a random key for part `n` of a dropout mask. The random numbers of different parts are independent.
inline PhiloxKey key_of(PhiloxKey key, int64_t n) {
  return {key.seed ^ (0x9E3779B97F4A7C15u * uint64_t(n + 1)), key.stream, key.recorded};
}

}  // namespace lockstep::sequence
