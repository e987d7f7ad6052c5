// ZeRO stage 2: gradients, too, are kept only for this rank's shard. A unit is reduced to its owners as soon as it is
// complete in backward; then its memory is used for another unit.
//
//   units a, b, c of gradients on 4 ranks, in two buffers that take turns:
//
//                      backward ──▶
//   buffer 1           a a a a ─▶ reduce_scatter         c c c c ─▶ reduce_scatter
//   buffer 2                       b b b b ─▶ reduce_scatter
//   kept on rank 0                               A           B                     C      first quarters; rank 1 keeps
//                                                                                         the second ones, ...
//
// Micro-batches. DDP and stage 1 sum the gradients of a rank's micro-batches before they sum over ranks. Here no rank
// has memory for such a sum: every micro-batch is reduced over the ranks by itself, and the owner sums the results. To
// get the same bits, micro-batches are assigned to ranks differently. With two ranks and four micro-batches, rank 0
// takes 0 and 2, rank 1 takes 1 and 3, so that every reduction makes a whole subtree of the fixed tree
// (dist/summation_tree.h):
//
//   ((g0 + g1) + (g2 + g3))        g0 + g1 and g2 + g3: reductions over the ranks;  the + between them: at the owner
//
// In DDP rank 0 takes 0 and 1, and rank 1 takes 2 and 3: there the + between the brackets is the reduction. See
// Zero::micro_batch().
//
//   each rank sends      (N-1)/N of the gradients per micro-batch, and (N-1)/N of the parameters per step;
//                        the same as DDP if there is one micro-batch
//   each rank holds      2 Ψ + (2 + 12) Ψ/N bytes, for Ψ parameters in 16 bits with Adam;
//                        two buffers, and log2(accumulation) more shards of gradients
//   paper                Rajbhandari et al., SC 2020, section 5.2 (P_os+g)
#include <algorithm>

#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {

/// Returns the next buffer of the pool. If all buffers are being reduced, waits for the reduction that started first.
Tensor Stage2::memory(size_t u) {
  if (units[u].grad_shard.defined()) units[u].reduced.add(std::exchange(units[u].grad_shard, {}));
  if (pool_.empty()) {
    int64_t bytes = 0;
    for (const Unit& unit : units) bytes = std::max(bytes, unit.layout.full() * size_of(unit.gradient_dtype));
    const MemoryScope scope(Memory::communication);
    for (int i = 0; i < (options.overlap_comm && units.size() > 1 ? 2 : 1); ++i)
      pool_.push_back(group.shared_empty({bytes}, u8, device));
  }
  if (begun_.size() >= pool_.size()) reducer_->finish(begun_[begun_.size() - pool_.size()]);
  const Tensor& next = pool_[begun_.size() % pool_.size()];
  begun_.push_back(u);
  return Tensor(next.storage(), next.offset(), {units[u].layout.full()}, {1}, units[u].gradient_dtype);
}

/// Makes every backward begin with the first buffer, so that all ranks use the same buffer for a unit even after a
/// backward that did not finish.
void Stage2::pass(parallel::Reducer::Pass moment, size_t) {
  if (moment == parallel::Reducer::Pass::begins) begun_.clear();
}

/// Reduces a unit's gradients. This rank's sum gets memory of its own, because another unit needs the buffer next.
std::function<void()> Stage2::start(size_t u, const Tensor& sum) {
  Unit& unit = units[u];
  {
    const MemoryScope scope(Memory::gradient);
    unit.grad_shard = empty({shard(unit).size()}, {.dtype = unit.gradient_dtype, .device = device});
  }
  return [work = reduce_to_owners(unit, sum, unit.grad_shard)]() mutable { work.wait(); };
}

}  // namespace lockstep::zero
