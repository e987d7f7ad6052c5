// ZeRO stage 3: parameters, too, are kept as shards. A module's parameters are gathered before its forward and again
// before its backward, and freed after each.
//
//   modules a, b, c on every rank       forward                          backward
//
//   gather        all_gather            a    b    c                      c    b    a
//   compute                                  a    b    c                      c    b    a
//   gradients     reduce_scatter                                                   c    b    a
//   free                                          a    b    c                      c    b    a
//
//   kept at all times on each of 4 ranks: a/4, b/4, c/4
//
// Gathers run ahead of the computation; hooks on modules and their outputs start them (gather.h). Tensors on the tape
// keep their storage, which is emptied and refilled underneath them.
//
//   each rank sends      3 (N-1)/N times the model per micro-batch: gathers parameters twice, reduces gradients once
//   each rank holds      (4 + 12) Ψ/N bytes, for Ψ parameters in 16 bits with Adam; and the units that are whole
//   paper                Rajbhandari et al., SC 2020, section 5.3 (P_os+g+p)
#include "zero/gather.h"
#include "zero/stage.h"

namespace lockstep::zero {

void Stage3::allocate(Unit& unit) {
  if (unit.persistent) return Stage1::allocate(unit);
  const MemoryScope scope(Memory::parameter);
  unit.weights = empty({unit.layout.full()}, {.dtype = unit.dtype, .device = device});
  move_into_weights(unit);
  gathers_->keep_shard(unit.number);
}

Tensor Stage3::weight(const Unit& unit, const OwnedPiece& piece) {
  return unit.persistent ? Stage1::weight(unit, piece)
                         : gathers_->store.live(unit.number).narrow(0, piece.at, piece.range.size());
}

void Stage3::gather_weights(Unit& unit) {
  if (unit.persistent) return Stage1::gather_weights(unit);
  gathers_->states[unit.number].active = 0;
  gathers_->release(unit.number);
}

void Stage3::pass(parallel::Reducer::Pass moment, size_t unit) {
  using parallel::Reducer;
  Stage2::pass(moment, unit);
  if (moment == Reducer::Pass::begins) gathers_->backward_begins();
  if (moment == Reducer::Pass::bucket_complete) gathers_->release(unit);
  if (moment == Reducer::Pass::ended) gathers_->backward_ends();
}

}  // namespace lockstep::zero
