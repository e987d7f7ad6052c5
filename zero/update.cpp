// The update of the elements that this rank owns, the same for all stages. It happens in memory: state and parameters
// that lie in files, or on another device than their update, come and go tile by tile (offload/tiles.h). A tile is the
// whole unit for optimizers that need whole parameters.
//
//   gradient of a tile in f32 ─▶ clip ─▶ update each part ─▶ write state and parameters to their place
//
// Each element is updated by itself, so tiles do not change results. On a CUDA device, updates of whole units are
// collected in `batch`, which makes them all at once and scales and clips on the way.
#include <algorithm>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "zero/offload/tiles.h"

namespace lockstep::zero {

void Stage::update(const StepOptions& o, const StepReport& report) {
  const double factor = o.max_norm > 0 ? o.max_norm / (report.norm + 1e-6) : 1, clip = factor >= 1 ? 1 : factor;
  on_files([&] { update_master_copies(); });
  tiles_->begin(used_);
  if (batch) batch->clear();
  for (Unit& unit : units) {
    if (!unit.trains) continue;
    const bool collects = !scaled && is_collected(unit);
    tiles_->each(unit, [&](TilePart& part) {
      Tensor g = collects ? unit.grad_shard.narrow(0, part.elements.begin, part.elements.size())
                          : gradient(unit, part.elements, scale_);
      if (!collects && clip != 1) mul_scalar_(g, clip);
      update(part, moved(g, part.weight.device()), collects);
    });
    if (!collects) gather_weights(unit);
  }
  if (!scaled) {
    if (Graph::is_capturing()) batch->check_recordable("zero");
    else batch->set({.scale = scale_, .clip = clip});
    batch->launch();
    for (Unit& unit : units)
      if (unit.trains && is_collected(unit)) gather_weights(unit);
  }
  tiles_->end();
}

/// Returns the gradients, times `scale`, of elements of this rank's shard, in f32 (f64 for f64 parameters).
Tensor Stage::gradient(const Unit& unit, dist::Range elements, double scale) const {
  const bool in_its_dtype = is_wide(unit.gradient_dtype);
  Tensor grads = unit.grad_shard.narrow(0, elements.begin, elements.size());
  if (in_its_dtype && !scaled && scale != 1) grads = mul_scalar(grads, scale);
  const Tensor wide = grads.to(unit.dtype == f64 ? f64 : f32);
  return in_its_dtype || scale == 1 ? wide : mul_scalar_(wide, scale);
}

/// Does the work of optim::Optimizer::step() for a part. 16-bit parameters are updated in an f32 master copy, which is
/// then rounded.
void Stage::update(TilePart& part, Tensor g, bool collects) {
  const Parameter& p = parameters[part.piece.parameter];
  optim::ParameterState& state = part.state;
  Tensor w = part.weight, low;
  const MemoryScope scope(part.piece.memory());
  if (!is_wide(w.dtype())) {
    Tensor& master = state.tensors["master"];
    if (!master.defined()) master = w.to(f32);
    low = std::exchange(w, master);
  }
  if (!p.optimizer->is_elementwise())  // such a rule needs the parameter's shape
    for (Tensor* const one : {&w, &g, &low})
      if (one->defined()) *one = one->view(p.variable.shape());
  for (auto& [key, tensor] : state.tensors)
    if (!optim::is_per_block(key)) tensor = tensor.view(p.optimizer->state_shape(key, w.shape()));
  std::optional<StepBatch::Scope> collecting;
  if (collects) collecting.emplace(*batch, p.rule, state.step);
  p.optimizer->advance(p.group, w, g, state, low, 1);
}

bool Stage::is_collected(const Unit& unit) const {
  const bool is_double = unit.dtype == f64, of_double = unit.gradient_dtype == f64;
  return !device.is_cpu() && is_double == of_double && options.offload_optimizer.device == Offload::none &&
         options.offload_param.device == Offload::none &&
         std::all_of(unit.pieces.begin(), unit.pieces.end(), [&](const OwnedPiece& piece) {
           return parameters[piece.parameter].optimizer->can_be_collected();
         });
}

/// For a step recorded in a graph: stores in `batch` the numbers that update() needs in each replay (learning rates,
/// step counts). Error if the kernels of StepBatch cannot update some parameter.
void Stage::collect_numbers(const std::vector<bool>& used) {
  batch->clear();
  update_master_copies();
  for (const Unit& unit : units) {
    if (!unit.trains) continue;
    LOCKSTEP_CHECK(is_collected(unit),
                   "[zero] a step can only be captured if nothing is offloaded, no average is kept, and the optimizers "
                   "are SGD, Adam, AdamW, Adagrad, RMSprop or Lion; else train without a graph (--no-graph)");
    for (const OwnedPiece& piece : unit.pieces) {
      if (!used[piece.parameter]) continue;
      const Parameter& p = parameters[piece.parameter];
      Tensor w = weight(unit, piece), low;
      optim::ParameterState state{.step = p.steps + 1, .tensors = piece.state, .full = p.variable.numel()};
      const StepBatch::Scope scope(*batch, p.rule, state.step, true);
      p.optimizer->update(p.group, w, Tensor(), state, low, 1);
    }
  }
}

}  // namespace lockstep::zero
