#pragma once
// Attention for cuDNN's backend API: graphs of products, pointwise operations and reductions. cuDNN's engines recognise
// them by their form and run them as one kernel (forward) or a few (backward). No tensors and no CUDA runtime here, so
// that a test can ask cuDNN without a device (tests/cudnn/). Internal.
#include "tensor/cuda/cudnn_graph.h"

namespace lockstep::cuda {

/// Everything that the choice of an engine depends on; the key of cached plans. q, out and their gradients are (batch,
/// heads, queries, width), k and v (batch, groups, keys, width), in 16 bits. Addresses are multiples of 16 bytes and
/// the last stride is 1.
struct AttentionProblem {
  bool backward;
  DType dtype;
  /// True: a query sees the keys up to its own position; there are as many keys as queries.
  bool causal;
  int64_t window;  ///< with causal: a query sees only the last `window` of these keys; 0: all
  int64_t batch, heads, groups, queries, keys, width;
  using Strides = std::array<int64_t, 3>;  ///< strides of batch, head and token, in elements
  Strides q, k, v, out;
  Strides grad = {}, grad_q = {}, grad_k = {}, grad_v = {};  ///< backward only
  auto operator<=>(const AttentionProblem&) const = default;
};

/// Addresses of the tensors. lse is f32 (batch, heads, queries), contiguous: forward writes and backward reads the
/// logarithm of the sum of exp(scaled score) over a query's keys. row_sums is scratch memory of the same size for
/// backward.
struct AttentionPointers {
  const void *q, *k, *v, *out;
  const float* lse;
  const void *grad = nullptr, *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
  const float* row_sums = nullptr;
};

/// The largest workspace that we accept. `scores` bytes of it are for the gradients of the scores, which the
/// deterministic backward writes and reads again in 16 bits.
int64_t workspace_limit(const AttentionProblem& problem, int64_t scores);
/// Chooses a plan for attention; refuses a problem with batch 0, which part_of() returns if no head fits.
EnginePlan plan_attention(const AttentionProblem& problem, const PlanTarget& target, int64_t most_workspace);
/// Runs attention on the stream of the handle. `problem` gives the layouts.
Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const AttentionProblem& problem,
                   const AttentionPointers& at, float scale, void* workspace);

/// A part of the problem whose scores take at most this many bytes: heads of k with the heads of q that share them, for
/// one or more entries of the batch. The part's batch and groups divide the problem's. Its batch is 0 if not even one
/// head fits.
AttentionProblem part_of(const AttentionProblem& problem, int64_t scores);

}  // namespace lockstep::cuda
