#pragma once
// Attention over sequences of T tokens that the P ranks of a group share, T/P tokens each. The result equals that of
// attention() on the whole sequences.
//
// Ulysses (Jacobs et al., 2023): an all-to-all turns T/P tokens of H heads into all T tokens of H/P heads; attention
// runs as on one rank; a second all-to-all turns the result back. a: data on rank 0, b: data on rank 1.
//
//            token                          token
//            0 1 2 3                        0 1 2 3
//   head 0   a a b b                        a a a a
//   head 1   a a b b    ─ all-to-all ─▶     b b b b
//
// Ring attention (Liu et al., 2023): queries stay; blocks of keys and values go round the ring. Each rank sends its
// current block on while computing with that block, and merges the results by their log-sum-exp, as FlashAttention
// does. Backward sends keys and values round once more; their gradients follow one hop behind and end on the owner's
// rank. A rank holds at most two blocks besides its own.
//
//   step   rank 0   rank 1   rank 2
//    0       k0       k1       k2           causal: blocks after all queries of a rank are skipped;
//    1       k2       k0       k1           the zigzag order (plan.h) keeps the ranks equally busy
//    2       k1       k2       k0
//
// Bytes that a rank sends for B sequences, H query heads and G key heads of width D, and elements of e bytes. The rank
// has q = B H (T/P) D elements of queries, and b = 2 B G (T/P) D of keys and values:
//
//              forward                   backward
//   Ulysses    (P-1)/P (2q + b) e        (P-1)/P (2q + b) e
//   ring       (P-1) b e                 (P-1) b e + P b w       w: bytes of a gradient, 4 for 16-bit inputs (summed in
//                                                                f32), else e
#include <memory>

#include "autograd/ops.h"
#include "dist/process_group.h"
#include "parallel/sequence/plan.h"

namespace lockstep::sequence {

/// Ulysses attention of q (B, H, T/P, D) with k and v (B, G, T/P, D): this rank's tokens, in contiguous order, of H
/// query heads and G key heads. Error unless P, the number of ranks, divides H. If P does not divide G, a key head is
/// sent to every rank that reads it. With dropout, if all ranks have the same random state, their masks together are
/// the mask that one process would use. Collective, and so is the backward.
Variable ulysses_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                           const std::shared_ptr<dist::ProcessGroup>& group);

/// Ring attention of q (B, H, T/P, D) with k and v (B, G, T/P, D), for any numbers of heads that attention() takes.
/// Errors: an attention window shorter than the sequence; an odd number of tokens per rank (T/P) in zigzag order.
Variable ring_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                        const std::shared_ptr<dist::ProcessGroup>& group, TokenOrder order = TokenOrder::contiguous);

}  // namespace lockstep::sequence
