// State of the optimizer in host memory or in a file. With offload to nvme, this rank's file has one region for each
// state tensor of each unit:
//
//   shards    unit 0  │ a a a b b b b b . │     unit 1  │ c c c c c c . . │
//
//   file      │ exp_avg of unit 0 │ exp_avg_sq of unit 0 │ master of unit 0 │ exp_avg of unit 1 │ ...
//
// A region holds one number for each element of the unit's shard, padding included, so a tile is one run of bytes in
// each region.
#include <algorithm>
#include <set>

#include "tensor/ops.h"
#include "zero/gather.h"
#include "zero/sharded_optimizer.h"

namespace lockstep::zero {

ShardedOptimizer::ShardedOptimizer(Stage& stage)
    : s_(stage), store_(stage.gathers() ? &stage.gathers()->store : nullptr), regions_(stage.units.size()) {
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

}  // namespace lockstep::zero
