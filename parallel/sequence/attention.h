#pragma once
// Attention over a sequence of which each rank of a group has T/P tokens: equal to attention() on the whole. What is
// sent, and when: docs/sequence-parallel.md.
//
//   Ulysses        tokens  0 1 2 3                      0 1 2 3
//           head 0         a a b b                      a a a a          a, b: rank 0, rank 1
//           head 1         a a b b    all-to-all ->     b b b b
//
//   ring    step   rank 0   rank 1   rank 2             causal: blocks that lie after the queries are left out;
//            0       k0       k1       k2               zigzag (plan.h) then keeps the ranks equally busy
//            1       k2       k0       k1
//            2       k1       k2       k0
#include <memory>

#include "autograd/ops.h"
#include "dist/process_group.h"
#include "parallel/sequence/plan.h"

namespace lockstep::sequence {

/// q (B, H, T/P, D), k and v (B, G, T/P, D): this rank's part, contiguous order. H must divide by P; keys of fewer
/// heads than ranks are sent to every rank that reads them. Under dropout the mask depends on the number of ranks.
Variable ulysses_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                           const std::shared_ptr<dist::ProcessGroup>& group);

/// The same by a ring; any H and G that attention() takes.
Variable ring_attention(const Variable& q, const Variable& k, const Variable& v, AttentionArgs args,
                        const std::shared_ptr<dist::ProcessGroup>& group, Order order = Order::contiguous);

}  // namespace lockstep::sequence
