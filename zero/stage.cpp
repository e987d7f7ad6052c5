// Stage 0: every rank has all state, sums gradients as in DDP (parallel/ddp.cpp), and takes the same step.
#include "zero/stage.h"

#include "tensor/nonfinite.h"
#include "tensor/ops.h"
#include "zero/gather.h"
#include "zero/offload/tiles.h"

namespace lockstep::zero {

Stage::~Stage() = default;

void Stage::build() {
  agree();
  plan();
  find_homes();
  if (options.stage == 3) gathers_ = std::make_unique<Gather>(*this);
  tiles_ = std::make_unique<Tiles>(*this);
  for (Unit& unit : units) allocate(unit);
  for (Parameter& p : parameters)
    if (p.unit == SIZE_MAX && p.variable.tensor().storage()->is_empty()) p.variable.set_tensor(value_of(p));
  listen();
}

/// Stage 0: parameters stay where they are.
void Stage::allocate(Unit& unit) {
  for (const size_t i : unit.parameters) {
    Parameter& p = parameters[i];
    if (p.variable.tensor().storage()->is_empty()) p.variable.set_tensor(value_of(p));
    LOCKSTEP_CHECK(p.variable.tensor().is_contiguous(), "[zero] expected row-major parameters, got ", p.name,
                   " with strides ", p.variable.tensor().strides(), "; use .contiguous() before ZeRO takes it");
  }
}

Tensor Stage::weight(const Unit&, const OwnedPiece& piece) {
  const Tensor& full = parameters[piece.parameter].variable.tensor();
  return full.view({full.numel()}).narrow(0, piece.range.begin, piece.range.size());
}

// --- the reducer's policy ---

void Stage::listen() {
  std::vector<parallel::Reducer::Parameter> all;
  for (const Parameter& p : parameters)
    all.push_back({.name = p.name,
                   .variable = p.variable,
                   .is_expert = is_expert(p),
                   .offset = p.unit == SIZE_MAX ? 0 : units[p.unit].layout.offsets[p.index_in_unit]});
  reducer_.emplace(
      *this, &group,
      parallel::Reducer::Rules{
          .name = "zero",
          .hooks = options.hooks,
          .overlap = options.overlap_comm,
          .at_once = options.stage < 2,
          .adopts_grad = options.stage == 0,
          .emptied = "ZeRO owns the gradients until Zero::step(); call it instead of the optimizer's step()"},
      std::move(all));
  std::vector<parallel::Reducer::Bucket> reduced;
  for (const Unit& unit : units) {
    parallel::Reducer::Bucket& one = reduced.emplace_back();
    if (unit.trains)
      one = {.members = unit.parameters,
             .numel = unit.layout.full(),
             .options = {unit.gradient_dtype, device},
             .dtype = unit.dtype,
             .group = unit.group};
  }
  reducer_->cut(std::move(reduced));
}

/// Gradients go to the reducer's memory, the same in every step. If this memory still holds the result of the last
/// reduction, because no step() followed, first adds a copy of that result to units[u].reduced.
Tensor Stage::memory(size_t u) {
  if (units[u].grad_shard.defined()) units[u].reduced.add(std::exchange(units[u].grad_shard, {}).clone());
  return {};
}

/// Looks for NaN and infinity in this rank's gradients of a unit. After the sum over ranks it would be unknown from
/// which rank they came. (A single rank looks in step() instead.) The result stays on the device, so that the host
/// never waits during backward.
void Stage::filled(size_t u, const Tensor& flat) {
  if (options.nonfinite == NonFinite::propagate || group.size() == 1) return;
  const MemoryScope scope(Memory::other);
  const auto members = int64_t(units[u].parameters.size());
  if (!own_bad_.defined())
    own_bad_ = zeros({units.back().first + int64_t(units.back().parameters.size())}, {.dtype = i32, .device = device});
  std::vector<Tensor> gradients;
  for (const size_t i : units[u].parameters) gradients.push_back(reducer_->view(flat, reducer_->parameters[i]));
  find_nonfinite(gradients, own_bad_.narrow(0, units[u].first, members));
}

std::function<void()> Stage::start(size_t u, const Tensor& sum) {
  units[u].grad_shard = sum;
  if (units[u].group->size() == 1) return [] {};
  return [work = units[u].group->all_reduce(sum, {.tag = units[u].tag, .async = true})]() mutable { work.wait(); };
}

void Stage::discarded() {
  for (Unit& unit : units) {
    unit.reduced = {};
    unit.grad_shard = Tensor();
  }
  own_bad_ = Tensor();
}

void Stage::enter_no_sync() {
  LOCKSTEP_CHECK(options.stage < 2, "[zero] no_sync() sums gradients at each rank, but in stage ", options.stage,
                 " no rank keeps whole gradients; leave it out: ",
                 "every backward reduces, and step() uses the sum of all since the last step");
  reducer_->enter_no_sync();
}

void Stage::add() {
  LOCKSTEP_CHECK(!options.hooks,
                 "[zero] expected add() with hooks = false, got hooks = true: backward gives ZeRO the "
                 "gradients itself; leave the call out");
  reducer_->add(true);
}

}  // namespace lockstep::zero
