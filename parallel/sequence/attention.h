#pragma once
// Attention over a sequence of which each rank of a group has T/P tokens: equal to attention() on the whole.
//
// Ulysses (Jacobs et al., 2023): an all-to-all turns T/P tokens of all heads into all tokens of H/P heads, attention
// runs as in one process, a second all-to-all turns back.
//
//        tokens  0 1 2 3                      0 1 2 3
//   head 0       a a b b                      a a a a          a, b: rank 0, rank 1
//   head 1       a a b b    all-to-all ->     b b b b
//
// Ring attention (Liu et al., 2023): queries stay; keys and values go round, to the next rank while this one computes
// with them. What a block gives is merged with what is there by the logarithms of the sums, as in FlashAttention.
// Backward sends keys and values round again, and their gradients one hop behind, which end where they belong. No rank
// holds more than two blocks of keys beside its own.
//
//   step   rank 0   rank 1   rank 2             causal: blocks that lie after the queries are left out;
//    0       k0       k1       k2               zigzag (plan.h) then keeps the ranks equally busy
//    1       k2       k0       k1
//    2       k1       k2       k0
//
// Bytes that a rank sends, e each element, b = 2 B G (T/P) D for keys and values of G heads, q = B H (T/P) D:
//            forward                 backward
//   Ulysses  (P-1)/P (2q + b) e      the same
//   ring     (P-1) b e               (P-1) b e + P b w        w: e; for 16 bits 4, as gradients are summed in f32
#include <memory>

#include "autograd/ops.h"
#include "dist/process_group.h"
#include "parallel/sequence/plan.h"

namespace lockstep::sequence {

/// q (B, H, T/P, D), k and v (B, G, T/P, D): this rank's part, contiguous order. H must divide by P; keys of fewer
/// heads than ranks are sent to every rank that reads them. Under dropout the mask is that of one process that draws
/// the same key; ranks may draw others.
Variable ulysses_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                           const std::shared_ptr<dist::ProcessGroup>& group);

/// The same by a ring; any H and G that attention() takes.
Variable ring_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                        const std::shared_ptr<dist::ProcessGroup>& group, Order order = Order::contiguous);

}  // namespace lockstep::sequence
