// Updates this rank's elements, tile by tile (offload/tiles.h). A tile is the whole unit for optimizers that need whole
// parameters.
//
//   gradient of a tile in f32 ─▶ clip ─▶ update each piece ─▶ write state and parameters to their place
//
// Each element is updated by itself, so tiles do not change results.
#include "zero/sharded_optimizer.h"

#include <algorithm>

#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::zero {

void ShardedOptimizer::update(const std::vector<bool>& used, double scale, double clip) {
  s_.on_files([&] { update_master_copies(); });
  tiles_.begin(used);
  if (s_.batch) s_.batch->clear();
  for (Unit& unit : s_.units) {
    if (!unit.trains) continue;
    const bool collects = !s_.scaled && s_.is_collected(unit);
    tiles_.each(unit, used, [&](const Tile& tile) {
      for (OwnedPiece& piece : unit.pieces) {
        const dist::Range elements{std::max(piece.at, tile.range.begin),
                                   std::min(piece.at + piece.range.size(), tile.range.end)};
        if (!used[piece.parameter] || elements.begin >= elements.end) continue;
        const Tensor g = collects ? unit.grad_shard.narrow(0, elements.begin, elements.size())
                                  : s_.gradient(unit, elements.begin, elements.size(), scale);
        if (!collects && !(clip >= 1)) mul_scalar_(g, clip);
        update(unit, piece, elements, g.to(home_of(piece)), tile, collects);
      }
    });
    for (OwnedPiece& piece : unit.pieces)
      for (const auto& [key, tensor] : piece.state) piece.keys.insert(key);
    if (!collects) s_.gather_weights(unit);
  }
  if (!s_.scaled) {
    if (Graph::is_capturing()) s_.batch->check_recordable("zero");
    else s_.batch->set({.scale = scale, .clip = clip >= 1 ? 1 : clip});
    s_.batch->launch();
    for (Unit& unit : s_.units)
      if (unit.trains && s_.is_collected(unit)) s_.gather_weights(unit);
  }
  tiles_.end();
}

void ShardedOptimizer::collect_numbers(const std::vector<bool>& used) {
  s_.batch->clear();
  update_master_copies();
  for (Unit& unit : s_.units) {
    if (!unit.trains) continue;
    LOCKSTEP_CHECK(s_.is_collected(unit),
                   "[zero] a step can only be captured if nothing is offloaded, no average is kept, and the optimizers "
                   "are SGD, Adam, AdamW, Adagrad, RMSprop or Lion; else train without a graph (--no-graph)");
    for (OwnedPiece& piece : unit.pieces) {
      if (!used[piece.parameter]) continue;
      const Parameter& p = s_.parameters[piece.parameter];
      Tensor w = s_.weight(unit, piece), low;
      optim::ParameterState state{.step = p.steps, .tensors = piece.state, .full = p.variable.numel()};
      const StepBatch::Scope scope(*s_.batch, p.rule, p.steps, true);
      p.optimizer->update(p.group, w, Tensor(), state, low, 1);
    }
  }
}

/// Does the work of optim::Optimizer::step() for `elements` of a piece. 16-bit parameters are updated in an
/// f32 master copy, which is then rounded.
void ShardedOptimizer::update(Unit& unit, OwnedPiece& piece, dist::Range elements, Tensor g, const Tile& tile,
                              bool collects) {
  const Parameter& p = s_.parameters[piece.parameter];
  optim::ParameterState state{.step = p.steps, .tensors = tile.state(p, piece, elements), .full = p.variable.numel()};
  const Tensor lives = tile.shard_at >= 0 ? tile.in_buffer(tile.shard_at, elements, unit.dtype)
                                          : elements_of(s_.weight(unit, piece), piece, elements),
               here = lives.to(home_of(piece));
  Tensor w = here, low;
  const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
  if (size_of(unit.dtype) == 2) {
    Tensor& master = state.tensors["master"];
    if (!master.defined()) master = w.to(f32);
    low = std::exchange(w, master);
  }
  if (!p.optimizer->is_elementwise())  // such a rule needs the parameter's shape
    for (Tensor* const one : {&w, &g, &low})
      if (one->defined()) *one = one->view(p.variable.shape());
  for (auto& [key, tensor] : state.tensors)
    if (!optim::is_per_block(key)) tensor = tensor.view(p.optimizer->state_shape(key, w.shape()));
  {
    std::optional<StepBatch::Scope> scope;
    if (collects) scope.emplace(*s_.batch, p.rule, p.steps);
    p.optimizer->advance(p.group, w, g, state, low, 1);
  }
  if (here.storage() != lives.storage()) lives.copy_(here);  // the piece was updated on another device: copy it back
  tile.keep(p, piece, elements, state.tensors);
}

std::map<std::string, Tensor> ShardedOptimizer::state_of(Unit& unit, OwnedPiece& piece, bool create_missing) {
  const Parameter& p = s_.parameters[piece.parameter];
  const bool in_file = piece.home == Offload::nvme, made = create_missing && piece.keys.empty();
  const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
  for (const auto& [key, dtype] : create_missing ? keys_of(p) : std::map<std::string, DType>()) {
    Tensor& tensor = piece.state[key];
    if (!in_file && !tensor.defined())
      tensor = zeros({entries(p, key, piece.range).size()}, {.dtype = dtype, .device = home_of(piece)});
    piece.keys.insert(key);
  }
  std::map<std::string, Tensor> all = piece.state;
  for (auto& [key, tensor] : all) {
    if (in_file) tensor = tiles_.mapped(unit, piece, key);
    if (made) tensor.zero_();
  }
  if (made) update_master_copy(unit, piece);
  return all;
}

/// Skips units that stage 3 shards: only gathered() can write to their parameters, and it updates the master copies.
void ShardedOptimizer::update_master_copies() {
  for (Unit& unit : s_.units) {
    if ((s_.gathers() && !unit.persistent) || size_of(unit.dtype) != 2) continue;
    for (OwnedPiece& piece : unit.pieces) {
      const Parameter& p = s_.parameters[piece.parameter];
      if (p.known_version == 0 || p.known_version != p.variable.tensor().storage()->version())
        update_master_copy(unit, piece);
    }
  }
  s_.see();
}

void ShardedOptimizer::update_master_copy(Unit& unit, OwnedPiece& piece) {
  const auto all = state_of(unit, piece);
  const auto master = all.find("master");
  if (master != all.end()) optim::follow(master->second, s_.weight(unit, piece));
}

}  // namespace lockstep::zero
