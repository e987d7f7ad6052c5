// State of the optimizer in host memory or in a file. See tiles.h.
#include "zero/offload/tiles.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tensor/ops.h"
#include "zero/gather.h"

namespace lockstep::zero {
namespace {

/// The dtype in which a file stores the optimizer's state for parameters of this dtype.
DType state_dtype(DType parameters) { return parameters == f64 ? f64 : f32; }

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

Tensor Tile::in_file(const std::string& key, dist::Range elements, const Parameter& p) const {
  const auto found = at.find(key);
  LOCKSTEP_CHECK(found != at.end(), "[offload] the optimizer now keeps '", key, "' for ", p.name,
                 ", for which the file has no space; offload to cpu, or set the optimizer's options before the first "
                 "step");
  return in_buffer(found->second, elements, state_dtype(p.variable.dtype()));
}

std::map<std::string, Tensor> Tile::state(const Parameter& p, const OwnedPiece& piece, dist::Range elements) const {
  std::map<std::string, Tensor> state;
  for (const std::string& key : piece.keys)
    state[key] =
        piece.home == Offload::nvme ? in_file(key, elements, p) : elements_of(piece.state.at(key), piece, elements);
  return state;
}

void Tile::keep(const Parameter& p, OwnedPiece& piece, dist::Range elements,
                const std::map<std::string, Tensor>& state) const {
  for (const auto& [key, tensor] : state) {
    if (!tensor.defined()) continue;
    Tensor& all = piece.state[key];  // stays undefined for state in the file
    const bool in_memory = piece.home != Offload::nvme,
               is_in_place = tensor.storage() == (in_memory ? all : buffer).storage();
    if (is_in_place) continue;
    tensor.storage()->book_as(MemoryScope::current());
    if (!in_memory) {
      in_file(key, elements, p).copy_(flat(tensor));
    } else if (elements.size() == piece.range.size()) {
      all = flat(tensor);
    } else {
      if (!all.defined()) all = zeros({piece.range.size()}, {.dtype = tensor.dtype(), .device = tensor.device()});
      elements_of(all, piece, elements).copy_(flat(tensor));
    }
  }
}

/// Only the optimizer's update rule knows which state it keeps, so the rule is run on a tensor of one element.
std::map<std::string, DType> keys_of(const Parameter& p) {
  const bool wide = size_of(p.variable.dtype()) >= 4;
  const TensorOptions like{.dtype = wide ? p.variable.dtype() : f32, .device = cpu};
  const Shape shape = p.optimizer->is_elementwise() ? Shape{1, 1} : Shape::filled(int(p.variable.dim()), 1);
  Tensor one = zeros(shape, like), low;
  optim::ParameterState state{.step = 1, .tensors = {}, .full = p.variable.numel()};
  p.optimizer->advance(p.group, one, zeros(shape, like), state, low, 1);
  std::map<std::string, DType> keys;
  if (!wide) keys["master"] = f32;
  for (const auto& [key, tensor] : state.tensors)
    if (tensor.defined()) keys[key] = tensor.dtype();
  return keys;
}

Tiles::Tiles(Stage& stage)
    : s_(stage), store_(stage.gathers() ? &stage.gathers()->store : nullptr), regions_(stage.units.size()) {
  const OffloadOptimizer& o = s_.options.offload_optimizer;
  find_homes();
  int64_t bytes = 0;
  for (const Unit& unit : s_.units) bytes = plan_regions(unit, bytes);
  s_.on_files([&] {
    if (bytes > 0)
      file_.emplace(o.nvme_path, str("the optimizer state of rank ", s_.group.world_rank(s_.rank())), bytes,
                    !o.fast_init);
    int64_t largest = 0;
    const std::vector<bool> all(s_.parameters.size(), true);
    for (const Unit& unit : s_.units)
      for (const Tile& tile : tiles_of(unit, all)) largest = std::max(largest, tile.bytes);
    if (largest == 0) return;
    queue_.emplace(s_.options.aio);
    ring_.emplace(*queue_, o, largest);
  });
}

/// Chooses the pieces whose state is offloaded: the first ones, up to offload_optimizer.ratio of all elements. Splits
/// the piece at this limit in two, at a multiple of norm_block elements, unless its optimizer needs whole parameters.
void Tiles::find_homes() {
  const OffloadOptimizer& o = s_.options.offload_optimizer;
  if (o.device == Offload::none) return;
  int64_t all = 0;
  for (const Unit& unit : s_.units)
    for (const OwnedPiece& piece : unit.pieces) all += piece.range.size();
  auto wanted = int64_t(o.ratio * double(all) + 0.5);
  for (Unit& unit : s_.units) {
    std::vector<OwnedPiece> pieces;
    for (const OwnedPiece& full : unit.pieces) {
      const int64_t n = full.range.size();
      int64_t first = std::min(n, wanted);
      if (first < n) {
        first = (first + norm_block / 2) / norm_block * norm_block;
        if (first > n || !s_.parameters[full.parameter].optimizer->is_elementwise()) first = 2 * wanted >= n ? n : 0;
      }
      wanted = std::max(int64_t(0), wanted - first);
      OwnedPiece offloaded = full, rest = full;
      offloaded.home = o.device;
      offloaded.range.end = rest.range.begin = full.range.begin + first;
      rest.at += first;
      if (first > 0) pieces.push_back(offloaded);
      if (first < n) pieces.push_back(rest);
    }
    unit.pieces = std::move(pieces);
  }
}

/// Places the unit's regions in the file from offset `end` on, and returns where they end.
int64_t Tiles::plan_regions(const Unit& unit, int64_t end) {
  std::set<std::string> keys;
  for (const OwnedPiece& piece : unit.pieces) {
    if (piece.home != Offload::nvme) continue;
    const Parameter& p = s_.parameters[piece.parameter];
    LOCKSTEP_CHECK(p.optimizer->block() == 1, "[offload] ", p.optimizer->name(), " keeps 8-bit state in blocks of ",
                   p.optimizer->block(), " elements, but offload to nvme stores f32; offload to cpu");
    for (const auto& [key, dtype] : keys_of(p)) {
      LOCKSTEP_CHECK(p.optimizer->state_shape(key, p.variable.shape()) == p.variable.shape(), "[offload] ",
                     p.optimizer->name(), " keeps '", key, "' per row or column of ", p.name,
                     ", but offload to nvme needs one value per element; offload to cpu");
      keys.insert(key);
    }
  }
  for (const std::string& key : keys) {
    regions_[unit.number][key] = end;
    end += round_to_block(unit.layout.shard * size_of(state_dtype(unit.dtype)));
  }
  return end;
}

/// The tiles of a unit that contain elements of a used parameter.
std::vector<Tile> Tiles::tiles_of(const Unit& unit, const std::vector<bool>& used) const {
  const size_t u = unit.number;
  const int64_t step = tile_size(s_, unit);
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < unit.layout.shard; begin += step) {
    Tile tile{.range = {begin, std::min(begin + step, unit.layout.shard)}};
    bool any = false, reads_state = false, writes_state = false, all_rounded = size_of(unit.dtype) == 2;
    for (const OwnedPiece& piece : unit.pieces) {
      if (piece.at >= tile.range.end || piece.at + piece.range.size() <= begin) continue;
      any |= used[piece.parameter];
      reads_state |= !piece.keys.empty() && piece.home == Offload::nvme;
      writes_state |= piece.home == Offload::nvme;
      all_rounded &= !piece.keys.empty() && used[piece.parameter];
    }
    if (!any) continue;
    // Adds the tile's part of a region that begins at `offset` in the file, and returns its offset in the buffer.
    const auto add = [&](const SwapFile& file, int64_t offset, DType dtype, bool reads) {
      const int64_t bytes = round_to_block(tile.range.size() * size_of(dtype));
      tile.extents.push_back({&file, offset + begin * size_of(dtype), tile.bytes, bytes, reads});
      return std::exchange(tile.bytes, tile.bytes + bytes);
    };
    if (writes_state)
      for (const auto& [key, offset] : regions_[u])
        tile.at[key] = add(*file_, offset, state_dtype(unit.dtype), reads_state);
    if (store_ && store_->is_in_file(u))  // 16-bit parameters need not be read if all are rounded from master weights
      tile.shard_at = add(store_->file(), store_->offset(u), unit.dtype, !all_rounded);
    tiles.push_back(std::move(tile));
  }
  return tiles;
}

void Tiles::begin(const std::vector<bool>& used) {
  if (!ring_) return;
  std::vector<std::vector<Extent>> in_files;
  for (const Unit& unit : s_.units)
    for (Tile& tile : tiles_of(unit, used))
      if (!tile.extents.empty()) in_files.push_back(std::move(tile.extents));
  s_.on_files([&] { ring_->begin(std::move(in_files)); });
}

void Tiles::each(const Unit& unit, const std::vector<bool>& used, const std::function<void(const Tile&)>& fn) {
  for (Tile& tile : tiles_of(unit, used)) {
    const bool in_file = !tile.extents.empty();
    if (in_file) s_.on_files([&] { tile.buffer = ring_->load(); });
    fn(tile);
    if (in_file) s_.on_files([&] { ring_->store(); });
  }
}

void Tiles::end() {
  if (ring_) s_.on_files([&] { ring_->end(); });
}

Tensor Tiles::mapped(const Unit& unit, const OwnedPiece& piece, const std::string& key) const {
  const DType dtype = state_dtype(unit.dtype);
  return file_->map(regions_[unit.number].at(key) + piece.at * size_of(dtype), piece.range.size(), dtype);
}

}  // namespace lockstep::zero
