#pragma once
// Attention as cuDNN's backend API sees it: graphs of products, pointwise operations and reductions, which its engines
// know by their form and run as one kernel (forward) or a few (backward). No tensors and no CUDA runtime here, so that
// a test can ask cuDNN without a device (tests/cudnn/). Internal.
#include "tensor/cuda/cudnn_graph.h"

namespace lockstep::cuda {

/// All that the choice of an engine depends on, and the key that a plan is kept under. q, out and their gradients are
/// (batch, heads, queries, width), k and v (batch, groups, keys, width), in 16 bits, with addresses of whole 16 bytes;
/// the last stride is 1.
struct AttentionProblem {
  bool backward;
  DType dtype;
  bool causal;     ///< a query sees the keys up to its own place: as many keys as queries
  int64_t window;  ///< causal: it sees the last so many of them; 0: all
  int64_t batch, heads, groups, queries, keys, width;
  using Strides = std::array<int64_t, 3>;  ///< of batch, head and token, in elements
  Strides q, k, v, out;
  Strides grad = {}, grad_q = {}, grad_k = {}, grad_v = {};  ///< of backward
  auto operator<=>(const AttentionProblem&) const = default;
};

/// Where they lie. lse is f32 (batch, heads, queries), contiguous: what forward writes and backward reads, the
/// logarithm of the sum of exp(scaled score) over a query's keys. row_sums is backward's scratch, as large.
struct AttentionPointers {
  const void *q, *k, *v, *out;
  const float* lse;
  const void *grad = nullptr, *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  const float* row_sums = nullptr;
};

/// Bytes that a plan may ask for, with `scores` of them for the matrix of scores' gradients, which the deterministic
/// backward writes and reads again in 16 bits.
int64_t workspace_limit(const AttentionProblem& problem, int64_t scores);
/// A problem without entries is refused.
EnginePlan plan_attention(const AttentionProblem& problem, const PlanTarget& target, int64_t most_workspace);
/// Puts it onto the stream of the handle; layouts as in the problem.
Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const AttentionProblem& problem,
                   const AttentionPointers& at, float scale, void* workspace);

/// A part of the problem whose scores take at most this many bytes: whole heads of k, of several entries of the batch
/// or of one; batch and groups are multiples of the part's. Without entries where not even one head fits.
AttentionProblem part_of(const AttentionProblem& problem, int64_t scores);

}  // namespace lockstep::cuda
