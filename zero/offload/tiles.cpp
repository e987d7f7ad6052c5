// State of the optimizer in host memory or in a file. See tiles.h.
#include "zero/offload/tiles.h"

#include <algorithm>
#include <utility>

#include "tensor/ops.h"
#include "zero/gather.h"

namespace lockstep::zero {
namespace {

/// The region of the parameters themselves, which lies in ShardStore's file. Other regions have names of state.
constexpr const char* own_region = "";

/// The dtype in which a file stores a region of parameters of this dtype.
DType stored_dtype(const std::string& region, DType parameters) {
  return region == own_region || parameters == f64 ? parameters : f32;
}

/// Elements per tile. In a file, tiles begin at multiples of file_block elements, so their offsets in bytes are
/// multiples of file_block for every dtype.
int64_t tile_size(const Stage& s, const Unit& unit) {
  const bool cuts =
      !s.is_collected(unit) && std::all_of(unit.pieces.begin(), unit.pieces.end(), [&](const OwnedPiece& piece) {
        const optim::Optimizer& o = *s.parameters[piece.parameter].optimizer;
        return o.is_elementwise() && o.block() == 1;
      });
  if (!cuts) return std::max<int64_t>(unit.layout.shard, 1);
  return std::max(s.options.sub_group_size / file_block * file_block, file_block);
}

}  // namespace

Tiles::Tiles(Stage& stage) : s_(stage), regions_(stage.units.size()), tiles_(stage.units.size()) {
  const OffloadOptimizer& o = s_.options.offload_optimizer;
  int64_t bytes = 0;
  for (const Unit& unit : s_.units) bytes = plan_regions(unit, bytes);
  s_.on_files([&] {
    if (bytes > 0)
      file_.emplace(o.nvme_path, str("the optimizer state of rank ", s_.group.world_rank(s_.rank())), bytes,
                    !o.fast_init);
    int64_t largest = 0;
    const std::vector<bool> all(s_.parameters.size(), true);
    for (Unit& unit : s_.units)
      for (const Tile& tile : tiles_of(unit, all)) largest = std::max(largest, tile.bytes);
    if (largest == 0) return;
    queue_.emplace(s_.options.aio);
    ring_.emplace(*queue_, o, largest);
  });
}

/// Places the unit's regions in the file from offset `end` on, and returns where they end.
int64_t Tiles::plan_regions(const Unit& unit, int64_t end) {
  std::map<std::string, int64_t>& regions = regions_[unit.number];
  for (const OwnedPiece& piece : unit.pieces) {
    if (piece.home != Offload::nvme) continue;
    const Parameter& p = s_.parameters[piece.parameter];
    LOCKSTEP_CHECK(p.optimizer->block() == 1, "[offload] ", p.optimizer->name(), " keeps 8-bit state in blocks of ",
                   p.optimizer->block(), " elements, but offload to nvme stores f32; offload to cpu");
    for (const auto& [key, dtype] : Stage::keys_of(p)) {
      LOCKSTEP_CHECK(p.optimizer->state_shape(key, p.variable.shape()) == p.variable.shape(), "[offload] ",
                     p.optimizer->name(), " keeps '", key, "' per row or column of ", p.name,
                     ", but offload to nvme needs one value per element; offload to cpu");
      regions[key];
    }
  }
  for (auto& [key, offset] : regions) {
    offset = end;
    end += round_to_block(unit.layout.shard * size_of(stored_dtype(key, unit.dtype)));
  }
  if (s_.gathers() && s_.gathers()->store.is_in_file(unit.number))
    regions[own_region] = s_.gathers()->store.offset(unit.number);
  return end;
}

/// The tiles of a unit that contain elements of a used parameter.
std::vector<Tiles::Tile> Tiles::tiles_of(Unit& unit, const std::vector<bool>& used) const {
  const int64_t step = tile_size(s_, unit);
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < unit.layout.shard; begin += step) {
    Tile tile{.range = {begin, std::min(begin + step, unit.layout.shard)}};
    bool has_state = false, all_rounded = !is_wide(unit.dtype);
    for (OwnedPiece& piece : unit.pieces) {
      const dist::Range elements{std::max(piece.at, begin), std::min(piece.at + piece.range.size(), tile.range.end)};
      if (elements.begin >= elements.end) continue;
      if (used[piece.parameter]) tile.parts.push_back({piece, elements});
      has_state |= piece.home == Offload::nvme;
      all_rounded &= !piece.keys.empty() && used[piece.parameter];
    }
    if (tile.parts.empty()) continue;
    for (const auto& [key, offset] : regions_[unit.number]) {
      const bool is_state = key != own_region;
      if (is_state && !has_state) continue;
      const int64_t element = size_of(stored_dtype(key, unit.dtype)),
                    bytes = round_to_block(tile.range.size() * element);
      const SwapFile& file = is_state ? *file_ : s_.gathers()->store.file();
      // 16-bit parameters need not be read if all are rounded from master weights.
      tile.extents.push_back({&file, offset + begin * element, tile.bytes, bytes, is_state || !all_rounded});
      tile.at[key] = std::exchange(tile.bytes, tile.bytes + bytes);
    }
    tiles.push_back(std::move(tile));
  }
  return tiles;
}

void Tiles::begin(const std::vector<bool>& used) {
  std::vector<std::vector<Extent>> in_files;
  for (Unit& unit : s_.units) {
    tiles_[unit.number] = tiles_of(unit, used);
    for (const Tile& tile : tiles_[unit.number])
      if (tile.bytes > 0) in_files.push_back(tile.extents);
  }
  if (ring_) s_.on_files([&] { ring_->begin(std::move(in_files)); });
}

void Tiles::each(Unit& unit, const std::function<void(TilePart&)>& fn) {
  for (Tile& tile : tiles_[unit.number]) {
    if (tile.bytes > 0) s_.on_files([&] { tile.buffer = ring_->load(); });
    for (TilePart part : tile.parts) {  // a copy, so that no tensor outlives the update
      OwnedPiece& piece = part.piece;
      const Parameter& p = s_.parameters[piece.parameter];
      const Tensor weight = place(tile, part, own_region);
      part.weight = moved(weight, s_.home_of(piece));
      part.state = {.step = p.steps + 1, .tensors = {}, .full = p.variable.numel()};
      for (const std::string& key : piece.keys) part.state.tensors[key] = place(tile, part, key);
      fn(part);
      if (part.weight.storage() != weight.storage()) bring_back(weight, part.weight);
      const MemoryScope scope(piece.memory());
      for (const auto& [key, tensor] : part.state.tensors) {
        if (!tensor.defined()) continue;
        Tensor& all = piece.state[key];  // stays undefined for state in the file
        if (piece.home != Offload::nvme && !all.defined()) {
          const int64_t n = piece.range.size();
          all = part.elements.size() == n ? flat(tensor)
                                          : zeros({n}, {.dtype = tensor.dtype(), .device = tensor.device()});
          all.storage()->book_as(piece.memory());
        }
        const Tensor kept = place(tile, part, key);
        if (kept.storage() != tensor.storage()) kept.copy_(flat(tensor));  // else it was updated in its place
      }
    }
    if (tile.bytes > 0) s_.on_files([&] { ring_->store(); });
  }
  for (OwnedPiece& piece : unit.pieces)
    for (const auto& [key, tensor] : piece.state) piece.keys.insert(key);
}

void Tiles::end() {
  if (ring_) s_.on_files([&] { ring_->end(); });
}

/// The part's elements of the parameter (own_region) or of a state tensor, in memory or in the tile's buffer. State
/// with one number per block of elements, as scales of 8-bit states, comes as it is: such a piece is never divided.
Tensor Tiles::place(const Tile& tile, const TilePart& part, const std::string& key) const {
  const OwnedPiece& piece = part.piece;
  const Parameter& p = s_.parameters[piece.parameter];
  const int64_t n = part.elements.size();
  const bool is_own = key == own_region;
  const auto found = tile.at.find(key);
  if (is_own ? found == tile.at.end() : piece.home != Offload::nvme) {
    const Tensor all = is_own ? s_.weight(s_.units[p.unit], piece) : piece.state.at(key);
    return n == piece.range.size() ? all : all.narrow(0, part.elements.begin - piece.at, n);
  }
  LOCKSTEP_CHECK(found != tile.at.end(), "[offload] the optimizer now keeps '", key, "' for ", p.name,
                 ", for which the file has no space; offload to cpu, or set the optimizer's options before the first "
                 "step");
  const DType dtype = stored_dtype(key, p.variable.dtype());
  const int64_t first = found->second / size_of(dtype) + part.elements.begin - tile.range.begin;
  return Tensor(tile.buffer.storage(), first, {n}, {1}, dtype);
}

Tensor Tiles::mapped(const Unit& unit, const OwnedPiece& piece, const std::string& key) const {
  const DType dtype = stored_dtype(key, unit.dtype);
  return file_->map(regions_[unit.number].at(key) + piece.at * size_of(dtype), piece.range.size(), dtype);
}

}  // namespace lockstep::zero
