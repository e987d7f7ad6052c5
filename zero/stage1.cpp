// ZeRO stage 1: each rank keeps optimizer state only for its shard, updates that shard, and shares the result.
//
//   4 ranks, one unit:       g  gradients of the rank       G  their sum over ranks       W  updated parameters
//
//             backward         reduce_scatter        update, with the       all_gather
//                                                    shard's state
//   rank 0    g g g g          G . . .               W . . .                W W W W
//   rank 1    g g g g          . G . .               . W . .                W W W W
//   rank 2    g g g g          . . G .               . . W .                W W W W
//   rank 3    g g g g          . . . G               . . . W                W W W W
//
// DDP's all-reduce is a reduce_scatter followed by an all_gather of gradients. Here the update comes in between, so
// that parameters are gathered instead of gradients: the same bytes, and 1/N of the work and of the state. Optimizer
// state is never communicated.
//
// Vocabulary: unit, parameters that are reduced together; whole, all elements of a unit; shard, the elements that one
// rank owns; master weights, the f32 copy of 16-bit parameters that the optimizer updates, kept for the shard only.
//
//   each rank sends      2 (N-1)/N times the model per step, as in DDP
//   each rank holds      4 Ψ + 12 Ψ/N bytes, for Ψ parameters in 16 bits with Adam
//   paper                Rajbhandari et al., SC 2020, section 5.1 (P_os)
#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {

/// Makes the parameters of a unit views of one flat tensor, so that all_gather writes directly into them.
void Stage1::allocate(Unit& unit) {
  {
    const MemoryScope scope(Memory::parameter);
    unit.weights = unit.group->shared_empty({unit.layout.full()}, unit.dtype, device);
  }
  move_into_weights(unit);
}

void Stage1::move_into_weights(Unit& unit) {
  if (unit.layout.padding() > 0) unit.weights.zero_();
  for (size_t index = 0; index < unit.parameters.size(); ++index) {
    Parameter& p = parameters[unit.parameters[index]];
    const Tensor view = unit.weights.narrow(0, unit.layout.offsets[index], p.variable.numel()).view(p.variable.shape());
    view.copy_(value_of(p));
    p.variable.set_tensor(view);
  }
}

dist::Work Stage1::reduce_to_owners(const Unit& unit, const Tensor& full, const Tensor& grad_shard) {
  const dist::CollectiveOptions o{.tag = unit.tag, .async = true};
  if (full.numel() == 0) return {};
  if (unit.layout.owner < 0 && options.reduce_scatter) return unit.group->reduce_scatter(grad_shard, full, o);
  dist::Work work =
      unit.layout.owner >= 0 ? unit.group->reduce(full, unit.layout.owner, o) : unit.group->all_reduce(full, o);
  if (grad_shard.storage() != full.storage())
    work.then([grad_shard, own = full.narrow(0, shard(unit).begin, grad_shard.numel())] { grad_shard.copy_(own); });
  return work;
}

/// Reduces a unit's gradients to their owners. The sum for this rank's shard stays at its place in the unit's memory.
std::function<void()> Stage1::start(size_t u, const Tensor& sum) {
  Unit& unit = units[u];
  unit.grad_shard = sum.narrow(0, shard(unit).begin, shard(unit).size());
  return [work = reduce_to_owners(unit, sum, unit.grad_shard)]() mutable { work.wait(); };
}

void Stage1::gather_weights(Unit& unit) {
  unit.gather_work = all_gather(unit, unit.weights.narrow(0, shard(unit).begin, shard(unit).size()));
}

}  // namespace lockstep::zero
