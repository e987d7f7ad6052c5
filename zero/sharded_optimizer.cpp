// The optimizer works tile by tile: sub_group_size elements of a unit's shard at a time. This bounds the memory for f32
// gradients and for state read from files. For optimizers that need whole parameters, a tile is the whole unit.
//
//   gradient of a tile in f32 ─▶ clip ─▶ update each piece ─▶ write state and parameters to their place
//
// Each element is updated by itself, so tiles do not change results. With offload to nvme, this rank's file has one
// region for each state tensor of each unit:
//
//   shards    unit 0  │ a a a b b b b b . │     unit 1  │ c c c c c c . . │
//
//   file      │ exp_avg of unit 0 │ exp_avg_sq of unit 0 │ master of unit 0 │ exp_avg of unit 1 │ ...
//
// A region holds one number for each element of the unit's shard, padding included, so a tile is one run of bytes in
// each region.
#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <set>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "zero/shard_store.h"

namespace lockstep::zero {
namespace {

DType state_dtype(const Unit& unit) { return unit.dtype == f64 ? f64 : f32; }

/// A number that is the same for parameters of one optimizer and group, as the key of a StepBatch::Scope.
int key_of(const Stage& stage, const Parameter& p) {
  const auto& all = stage.optimizers;
  return int(std::find(all.begin(), all.end(), p.optimizer) - all.begin()) << 16 | p.group;
}

}  // namespace

struct ShardedOptimizer::Tile {
  // A tile: a range of a unit's shard, and its bytes in files.
  size_t unit = 0;
  dist::Range range;                  // elements of the shard
  std::vector<Extent> extents;        // where the tile's parts lie in files
  int64_t bytes = 0;                  // size of the tile's buffer
  std::map<std::string, int64_t> at;  // offset of each state tensor in the buffer
  int64_t shard_at = -1;              // offset of the parameters in the buffer; -1: they are in memory

  Tensor view(const Tensor& buffer, int64_t where, dist::Range part, DType dtype) const {
    return Tensor(buffer.storage(), where / size_of(dtype) + part.begin - range.begin, {part.size()}, {1}, dtype);
  }
};

ShardedOptimizer::ShardedOptimizer(Stage& stage) : s_(stage), store_(stage.store()), regions_(stage.units.size()) {
  const OffloadOptimizer& o = s_.options.offload_optimizer;
  find_homes();
  int64_t bytes = 0;
  for (size_t u = 0; u < s_.units.size(); ++u) bytes = plan_regions(u, bytes);
  s_.on_files([&] {
    if (bytes > 0)
      file_.emplace(o.nvme_path, str("the optimizer state of rank ", s_.group.world_rank(s_.rank())), bytes,
                    !o.fast_init);
    int64_t largest = 0;
    const std::vector<bool> all(s_.parameters.size(), true);
    for (size_t u = 0; u < s_.units.size(); ++u)
      for (const Tile& tile : tiles_of(u, all)) largest = std::max(largest, tile.bytes);
    if (largest == 0) return;
    queue_.emplace(s_.options.aio);
    ring_.emplace(*queue_, TileRing::Options{.count = o.buffer_count,
                                             .bytes = largest,
                                             .pin = o.pin_memory,
                                             .read_ahead = o.pipeline_read,
                                             .write_behind = o.pipeline_write});
  });
}

/// Chooses the pieces whose state is offloaded: the first ones, up to offload_optimizer.ratio of all elements. Splits
/// the piece at this limit in two, at a multiple of norm_block elements, unless its optimizer needs whole parameters.
void ShardedOptimizer::find_homes() {
  const OffloadOptimizer& o = s_.options.offload_optimizer;
  if (o.device == Offload::none) return;
  int64_t all = 0;
  for (const Unit& unit : s_.units)
    for (const Piece& piece : unit.pieces) all += piece.range.size();
  auto wanted = int64_t(o.ratio * double(all) + 0.5);
  for (Unit& unit : s_.units) {
    std::vector<Piece> pieces;
    for (Piece& piece : unit.pieces) {
      const int64_t n = piece.range.size();
      int64_t first = std::min(n, wanted);
      if (first < n) {
        first = (first + norm_block / 2) / norm_block * norm_block;
        if (first > n || !s_.parameters[piece.parameter].optimizer->is_elementwise()) first = 2 * wanted >= n ? n : 0;
      }
      wanted = std::max(int64_t(0), wanted - first);
      const dist::Range range = piece.range;
      if (first > 0)
        pieces.push_back({.parameter = piece.parameter,
                          .range = {range.begin, range.begin + first},
                          .at = piece.at,
                          .home = o.device});
      if (first < n)
        pieces.push_back(
            {.parameter = piece.parameter, .range = {range.begin + first, range.end}, .at = piece.at + first});
    }
    unit.pieces = std::move(pieces);
  }
}

/// Places the unit's regions in the file from offset `end` on, and returns where they end.
int64_t ShardedOptimizer::plan_regions(size_t u, int64_t end) {
  Unit& unit = s_.units[u];
  std::set<std::string> keys;
  for (Piece& piece : unit.pieces) {
    if (piece.home != Offload::nvme) continue;
    const Parameter& p = s_.parameters[piece.parameter];
    LOCKSTEP_CHECK(p.optimizer->block() == 1, "[offload] ", p.optimizer->name(), " keeps 8-bit state in blocks of ",
                   p.optimizer->block(), " elements, but offload to nvme stores f32; offload to cpu");
    for (const auto& [key, dtype] : keys_of(p)) {
      LOCKSTEP_CHECK(p.optimizer->state_shape(key, p.variable.shape()) == p.variable.shape(), "[offload] ",
                     p.optimizer->name(), " keeps '", key, "' per row or column of ", p.name,
                     ", but offload to nvme needs one value per element; offload to cpu");
      piece.keys.push_back(key);
    }
    keys.insert(piece.keys.begin(), piece.keys.end());
  }
  for (const std::string& key : keys) {
    regions_[u][key] = end;
    end += round_to_block(unit.layout.shard * size_of(state_dtype(unit)));
  }
  return end;
}

/// Names and dtypes of the state that the optimizer keeps for a parameter. Only the optimizer's rule knows them, so the
/// rule is run on a tensor of one element.
std::map<std::string, DType> ShardedOptimizer::keys_of(const Parameter& p) const {
  const bool wide = size_of(p.variable.dtype()) >= 4;
  const TensorOptions like{.dtype = wide ? p.variable.dtype() : f32, .device = cpu};
  const Shape shape = p.optimizer->is_elementwise() ? Shape{1, 1} : Shape::filled(int(p.variable.dim()), 1);
  Tensor one = zeros(shape, like), low;
  optim::ParameterState state{.step = 1, .tensors = {}, .whole = p.variable.numel()};
  p.optimizer->advance(p.group, one, zeros(shape, like), state, low, 1);
  std::map<std::string, DType> keys;
  if (!wide) keys["master"] = f32;
  for (const auto& [key, tensor] : state.tensors)
    if (tensor.defined()) keys[key] = tensor.dtype();
  return keys;
}

/// True if the unit is updated on a CUDA device by the kernels of StepBatch, which update many tensors at once.
bool ShardedOptimizer::is_collected(const Unit& unit) const {
  const bool is_double = unit.dtype == f64, of_double = unit.gradient_dtype == f64;
  return !s_.device.is_cpu() && is_double == of_double && s_.options.offload_optimizer.device == Offload::none &&
         s_.options.offload_param.device == Offload::none &&
         std::all_of(unit.pieces.begin(), unit.pieces.end(),
                     [&](const Piece& piece) { return s_.parameters[piece.parameter].optimizer->can_be_collected(); });
}

/// Elements per tile. In a file, tiles begin at multiples of file_block elements, so their offsets in bytes are
/// multiples of file_block for every dtype.
int64_t ShardedOptimizer::tile_size(const Unit& unit) const {
  if (is_collected(unit)) return std::max<int64_t>(unit.layout.shard, 1);
  for (const Piece& piece : unit.pieces) {
    const optim::Optimizer& o = *s_.parameters[piece.parameter].optimizer;
    if (!o.is_elementwise() || o.block() > 1) return std::max<int64_t>(unit.layout.shard, 1);
  }
  return std::max(s_.options.sub_group_size / file_block * file_block, file_block);
}

/// Tiles that contain something to update.
std::vector<ShardedOptimizer::Tile> ShardedOptimizer::tiles_of(size_t u, const std::vector<bool>& used) {
  const Unit& unit = s_.units[u];
  const int64_t width = size_of(state_dtype(unit)), step = tile_size(unit);
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < unit.layout.shard; begin += step) {
    Tile tile{.unit = u, .range = {begin, std::min(begin + step, unit.layout.shard)}, .extents = {}, .at = {}};
    bool any = false, reads_state = false, writes_state = false, all_rounded = size_of(unit.dtype) == 2;
    for (const Piece& piece : unit.pieces) {
      if (piece.at >= tile.range.end || piece.at + piece.range.size() <= begin) continue;
      any |= used[piece.parameter];
      reads_state |= piece.started && piece.home == Offload::nvme;
      writes_state |= piece.home == Offload::nvme;
      all_rounded &= piece.started && used[piece.parameter];
    }
    if (!any) continue;
    const auto add = [&](const SwapFile& file, int64_t offset, int64_t bytes, bool reads) {
      tile.extents.push_back({&file, offset, tile.bytes, round_to_block(bytes), reads});
      return std::exchange(tile.bytes, tile.bytes + round_to_block(bytes));
    };
    if (writes_state)
      for (const auto& [key, offset] : regions_[u])
        tile.at[key] = add(*file_, offset + begin * width, tile.range.size() * width, reads_state);
    if (store_ && store_->is_in_file(u)) {  // 16-bit parameters need not be read if all are rounded from master weights
      tile.shard_at = add(store_->file(), store_->offset(u) + begin * size_of(unit.dtype),
                          tile.range.size() * size_of(unit.dtype), !all_rounded);
    }
    tiles.push_back(std::move(tile));
  }
  return tiles;
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

std::map<std::string, Tensor> ShardedOptimizer::kept(Unit& unit, Piece& piece) {
  std::map<std::string, Tensor> all;
  if (!piece.started) return all;
  if (piece.home != Offload::nvme) return piece.state;
  const DType dtype = state_dtype(unit);
  for (const std::string& key : piece.keys)
    all[key] = file_->map(regions_[size_t(&unit - s_.units.data())].at(key) + piece.at * size_of(dtype),
                          piece.range.size(), dtype);
  return all;
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
