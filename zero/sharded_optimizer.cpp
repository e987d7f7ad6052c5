// Updates this rank's elements, tile by tile: sub_group_size elements of a unit's shard at a time. This bounds the
// memory for f32 gradients and for state read from files (offload/tiles.cpp). A tile is the whole unit for optimizers
// that need whole parameters.
//
//   gradient of a tile in f32 ─▶ clip ─▶ update each piece ─▶ write state and parameters to their place
//
// Each element is updated by itself, so tiles do not change results.
#include "zero/sharded_optimizer.h"

#include <algorithm>

#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::zero {
namespace {

/// A number that is the same for parameters of one optimizer and group, as the key of a StepBatch::Scope.
int key_of(const Stage& stage, const Parameter& p) {
  const auto& all = stage.optimizers;
  return int(std::find(all.begin(), all.end(), p.optimizer) - all.begin()) << 16 | p.group;
}

}  // namespace

/// True if the unit is updated on a CUDA device by the kernels of StepBatch, which update many tensors at once.
bool ShardedOptimizer::is_collected(const Unit& unit) const {
  const bool is_double = unit.dtype == f64, of_double = unit.gradient_dtype == f64;
  return !s_.device.is_cpu() && is_double == of_double && s_.options.offload_optimizer.device == Offload::none &&
         s_.options.offload_param.device == Offload::none &&
         std::all_of(unit.pieces.begin(), unit.pieces.end(),
                     [&](const Piece& piece) { return s_.parameters[piece.parameter].optimizer->can_be_collected(); });
}

void ShardedOptimizer::update(const std::vector<bool>& used, double scale, double clip) {
  std::vector<Tile> tiles;
  std::vector<std::vector<Extent>> in_files;
  for (size_t u = 0; u < s_.units.size(); ++u) {
    for (Tile& tile : tiles_of(u, used)) {
      if (!tile.extents.empty()) in_files.push_back(tile.extents);
      tiles.push_back(std::move(tile));
    }
  }
  if (ring_) s_.on_files([&] { ring_->begin(std::move(in_files)); });
  if (s_.batch) s_.batch->clear();
  auto tile = tiles.begin();
  for (size_t u = 0; u < s_.units.size(); ++u) {
    Unit& unit = s_.units[u];
    if (!unit.trains) continue;
    const bool collects = !s_.scaled && is_collected(unit);
    for (; tile != tiles.end() && tile->unit == u; ++tile) {
      Tensor buffer;
      if (!tile->extents.empty()) s_.on_files([&] { buffer = ring_->load(); });
      for (Piece& piece : unit.pieces) {
        const dist::Range part{std::max(piece.at, tile->range.begin),
                               std::min(piece.at + piece.range.size(), tile->range.end)};
        if (!used[piece.parameter] || part.begin >= part.end) continue;
        if (collects) {
          update(unit, piece, part, unit.part.narrow(0, part.begin, part.size()), *tile, buffer, true);
          continue;
        }
        const Tensor g = s_.gradient(unit, part.begin, part.size(), scale);
        if (!(clip >= 1)) mul_scalar_(g, clip);
        update(unit, piece, part, g.to(home_of(piece)), *tile, buffer, false);
      }
      if (buffer.defined()) s_.on_files([&] { ring_->store(); });
    }
    for (Piece& piece : unit.pieces) piece.started |= used[piece.parameter], piece.fresh.clear();
    if (!collects) s_.publish(unit);
  }
  if (!s_.scaled) {
    if (Graph::is_capturing()) s_.batch->check_recordable("zero");
    else s_.batch->set({.scale = scale, .clip = clip >= 1 ? 1 : clip});
    s_.batch->launch();
    for (Unit& unit : s_.units)
      if (unit.trains && is_collected(unit)) s_.publish(unit);
  }
  if (ring_) s_.on_files([&] { ring_->end(); });
}

void ShardedOptimizer::collect_numbers(const std::vector<bool>& used) {
  s_.batch->clear();
  follow_writes();
  for (Unit& unit : s_.units) {
    if (!unit.trains) continue;
    LOCKSTEP_CHECK(is_collected(unit),
                   "[zero] a step can only be captured if nothing is offloaded, no average is kept, and the optimizers "
                   "are SGD, Adam, AdamW, Adagrad, RMSprop or Lion");
    for (Piece& piece : unit.pieces) {
      if (!used[piece.parameter]) continue;
      const Parameter& p = s_.parameters[piece.parameter];
      Tensor w = s_.weight(unit, piece), low;
      optim::ParameterState state{.step = p.steps, .tensors = piece.state, .whole = p.variable.numel()};
      const StepBatch::Scope scope(*s_.batch, key_of(s_, p), p.steps, true);
      p.optimizer->update(p.group, w, Tensor(), state, low, 1);
    }
  }
}

/// Does the work of optim::Optimizer::step() for the elements `part` of a piece. 16-bit parameters are updated in an
/// f32 master copy, which is then rounded.
void ShardedOptimizer::update(Unit& unit, Piece& piece, dist::Range part, const Tensor& gradient, const Tile& tile,
                              const Tensor& buffer, bool collects) {
  const Parameter& p = s_.parameters[piece.parameter];
  const bool is_whole = part.size() == piece.range.size(), in_file = piece.home == Offload::nvme;
  // Returns this part's values of the state tensor `key`, or an undefined tensor if there are none yet.
  const auto place = [&](const std::string& key) {
    if (in_file) {
      const auto found = tile.at.find(key);
      LOCKSTEP_CHECK(
          found != tile.at.end(), "[offload] the optimizer now keeps '", key, "' for ", p.name,
          ", for which the file has no space; offload to cpu, or set the optimizer's options before the first step");
      return tile.view(buffer, found->second, part, state_dtype(unit));
    }
    const Tensor& all = piece.state[key];
    if (!all.defined() || is_whole) return all;
    return all.narrow(0, part.begin - piece.at, part.size());
  };
  optim::ParameterState state{.step = p.steps, .tensors = {}, .whole = p.variable.numel()};
  if (piece.started) {
    std::vector<std::string> keys;
    if (in_file) keys = piece.keys;
    else
      for (const auto& [key, tensor] : piece.state)
        if (tensor.defined() && !piece.fresh.count(key)) keys.push_back(key);
    for (const std::string& key : keys) state.tensors[key] = place(key);
  }
  const std::map<std::string, Tensor> before = state.tensors;
  const Tensor lives = tile.shard_at >= 0 ? tile.view(buffer, tile.shard_at, part, unit.dtype)
                                          : s_.weight(unit, piece).narrow(0, part.begin - piece.at, part.size());
  const Tensor here = lives.to(home_of(piece));
  Tensor w = here, low;
  const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
  if (size_of(unit.dtype) == 2) {
    Tensor& master = state.tensors["master"];
    if (!master.defined()) master = w.to(f32);
    else if (is_behind(unit, piece)) optim::follow(master, w);
    low = w;
    w = master;
  }
  Tensor g = gradient;
  if (!p.optimizer->is_elementwise()) {  // such a rule needs the parameter's shape
    w = w.view(p.variable.shape());
    g = g.view(p.variable.shape());
    if (low.defined()) low = low.view(p.variable.shape());
  }
  for (auto& [key, tensor] : state.tensors)
    if (tensor.defined() && !optim::is_per_block(key)) tensor = tensor.view(p.optimizer->state_shape(key, w.shape()));
  {
    std::optional<StepBatch::Scope> scope;
    if (collects) scope.emplace(*s_.batch, key_of(s_, p), p.steps);
    p.optimizer->advance(p.group, w, g, state, low, 1);
  }
  if (here.storage() != lives.storage()) lives.copy_(here);  // the piece was updated on another device: copy it back
  for (const auto& [key, tensor] : state.tensors) {
    const auto old = before.find(key);
    if (!tensor.defined() || (old != before.end() && tensor.storage() == old->second.storage()))
      continue;  // undefined, or updated where it is stored
    tensor.storage()->book_as(MemoryScope::current());
    if (in_file || !is_whole) {
      if (!in_file && !piece.state[key].defined()) {
        piece.state[key] = zeros({piece.range.size()}, {.dtype = tensor.dtype(), .device = tensor.device()});
        piece.fresh.insert(key);
      }
      place(key).copy_(flat(tensor));
    } else {
      piece.state[key] = flat(tensor);
    }
  }
}

std::map<std::string, Tensor> ShardedOptimizer::make_kept(Unit& unit, Piece& piece) {
  const bool made = !std::exchange(piece.started, true);
  if (piece.home != Offload::nvme) {
    const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
    const Parameter& p = s_.parameters[piece.parameter];
    for (const auto& [key, dtype] : keys_of(p)) {
      Tensor& tensor = piece.state[key];
      if (!tensor.defined())
        tensor = zeros({entries(p, key, piece.range).size()}, {.dtype = dtype, .device = home_of(piece)});
    }
  }
  const auto all = kept(unit, piece);
  if (made) {
    for (const auto& [key, tensor] : all) tensor.zero_();
    follow_writes(unit, piece);
  }
  return all;
}

void ShardedOptimizer::follow_writes() {
  for (Unit& unit : s_.units) {
    for (Piece& piece : unit.pieces)
      if (is_behind(unit, piece)) follow_writes(unit, piece);
  }
  s_.see();
}

void ShardedOptimizer::follow_writes(Unit& unit, Piece& piece) {
  const auto all = kept(unit, piece);
  const auto master = all.find("master");
  if (master != all.end() && master->second.defined()) optim::follow(master->second, s_.weight(unit, piece));
}

}  // namespace lockstep::zero
