// ZeRO 1: each rank keeps the optimizer's state for its shard only, updates that, and shares the result.
//
//   4 ranks, one unit. g: gradients, w: parameters, s: optimizer state (moments, master weights)
//
//             backward            reduce_scatter           update              all_gather
//   rank 0    g g g g   (own)     G . . .                  w s . . .           w w w w
//   rank 1    g g g g             . G . .                    . w s .           w w w w
//   rank 2    g g g g             . . G .                    . . w s           w w w w
//   rank 3    g g g g             . . . G                    . . . w s         w w w w
//
// DDP's all-reduce is a reduce_scatter and an all_gather of gradients. Here the update comes between the two, so parameters are gathered
// in place of gradients: the same bytes, and 1/N of the work and of the state. Optimizer states never move.
//
// Vocabulary: whole, all elements of a unit; shard, what one rank owns of it; master weights, the f32 copy of 16-bit parameters that
// the optimizer updates, kept for the shard alone.
// Cost: 2(N-1)/N times the bytes of the model a step, as DDP. Memory for psi parameters of 16 bits with Adam: 4 psi + 12 psi / N bytes.
// Paper: Rajbhandari et al., SC 2020, section 5.1 (P_os).
#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {

/// Parameters become views of one flat tensor, so that all_gather writes into them.
void Stage1::place(Unit& unit) {
  {
    const MemoryScope scope(Memory::parameter);
    unit.weights = unit.ranks->shared_empty({unit.layout.whole()}, unit.dtype, device_);
  }
  move_into_weights(unit);
}

void Stage1::move_into_weights(Unit& unit) {
  if (unit.layout.padding() > 0) unit.weights.zero_();
  for (size_t place = 0; place < unit.members.size(); ++place) {
    Parameter& p = parameters[unit.members[place]];
    const Tensor view = unit.weights.narrow(0, unit.layout.offsets[place], p.variable.numel()).view(p.variable.shape());
    view.copy_(value_of(p));
    p.variable.set_tensor(view);
  }
}

void Stage1::reduce(Unit& unit, Tensor whole) {
  const dist::Range mine = shard(unit);
  const Tensor part = whole.narrow(0, mine.begin, mine.size());
  unit.part = part;
  const dist::CollectiveOptions o{.tag = unit.tag, .async = options.overlap_comm};
  if (whole.numel() == 0) return;
  if (unit.layout.owner >= 0) start(unit, unit.ranks->reduce(whole, unit.layout.owner, o));
  else if (options.reduce_scatter) start(unit, unit.ranks->reduce_scatter(part, whole, o));
  else start(unit, unit.ranks->all_reduce(whole, o));
}

void Stage1::publish(Unit& unit) {
  if (unit.layout.whole() == 0) return;
  const dist::Range mine = shard(unit);
  const dist::CollectiveOptions o{.tag = unit.tag, .async = options.overlap_comm};
  if (unit.layout.owner >= 0) start(unit, unit.ranks->broadcast(unit.weights, unit.layout.owner, o));
  else start(unit, unit.ranks->all_gather(unit.weights, unit.weights.narrow(0, mine.begin, mine.size()), o));
}

}  // namespace lockstep::zero
