// ZeRO 2: gradients, too, are kept for this rank's shard only. A unit is reduced to its owners as soon as it is
// complete in backward, and its memory is given to the next one.
//
//   4 ranks, 3 units a, b, c of gradients; two buffers take turns       backward ──▶ time
//
//   buffer 1      a a a a ─▶ reduce_scatter           c c c c ─▶ reduce_scatter
//   buffer 2                  b b b b ─▶ reduce_scatter
//   kept, rank 0            A                      B                     C    (rank 1 keeps the second quarters, ...)
//
// Micro-batches: DDP and stage 1 sum those of a rank before they meet other ranks'. Here nobody has the memory for such
// a sum, so every micro-batch is reduced by itself, and an owner sums the results. For the bits to be the same it takes
// another deal: with two ranks and four micro-batches, rank 0 takes 0 and 2, rank 1 takes 1 and 3. Then every reduction
// makes a whole subtree of the one tree,
//
//        ((g0 + g1) + (g2 + g3))     + in a bracket: between ranks, in the exchange; between brackets: at the owner
//
// where DDP, with 0 1 on rank 0 and 2 3 on rank 1, does it the other way round. Zero::micro_batch() deals.
//
// Cost: N-1 of N parts of the gradients are sent for every micro-batch. With one micro-batch a step that makes 2(N-1)/N
// times the model, as DDP. Memory for psi parameters of 16 bits with Adam: 2 psi + (2 + 12) psi / N bytes, the buffers,
// and log2(accumulation) further shards. Paper: Rajbhandari et al., SC 2020, section 5.2 (P_os+g).
#include <algorithm>

#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {

void Stage2::enter_no_sync() {
  fail(str("[zero] no_sync() sums gradients at each rank, but in stage ", options.stage,
           " no rank keeps whole gradients; leave it out: ",
           "every backward reduces, and step() uses the sum of all since the last step"));
}

/// The next buffer of the pool. When all are on their way, the one that left first comes back first.
Tensor Stage2::memory(size_t u) {
  if (units[u].part.defined()) units[u].reduced.add(std::exchange(units[u].part, {}));
  if (pool_.empty()) {
    int64_t bytes = 0;
    for (const Unit& unit : units) bytes = std::max(bytes, unit.layout.whole() * size_of(unit.gradient_dtype));
    const MemoryScope scope(Memory::communication);
    for (int i = 0; i < (options.overlap_comm && units.size() > 1 ? 2 : 1); ++i)
      pool_.push_back({group.shared_empty({bytes}, u8, device)});
  }
  Lent& next =
      *std::min_element(pool_.begin(), pool_.end(), [](const Lent& a, const Lent& b) { return a.since < b.since; });
  if (next.unit != SIZE_MAX) reducer_->finish(next.unit);
  next.unit = u;
  next.since = ++turns_;
  return Tensor(next.bytes.storage(), next.bytes.offset(), {units[u].layout.whole()}, {1}, units[u].gradient_dtype);
}

/// Turns begin anew, so that all ranks have a unit in the same buffer, also when one of them could not end a pass.
void Stage2::forgotten() {
  Stage1::forgotten();
  for (Lent& lent : pool_) lent.unit = SIZE_MAX, lent.since = 0;
  turns_ = 0;
}

/// Each rank's part gets memory of its own, for the buffer goes to the next unit.
std::function<void()> Stage2::start(size_t u, const Tensor& sum) {
  Unit& unit = units[u];
  {
    const MemoryScope scope(Memory::gradient);
    unit.part = empty({shard(unit).size()}, {.dtype = unit.gradient_dtype, .device = device});
  }
  return [work = reduce_to_owners(unit, sum, unit.part)]() mutable { work.wait(); };
}

}  // namespace lockstep::zero
