// The optimizer, tile by tile: sub_group_size elements of a unit's shard at a time, so that what a tile needs beside the state (gradients in f32, bytes
// of a file) is bounded. Rules that look at a whole parameter take a unit as one tile.
//
//   gradient of the tile in f32 ─▶ clip ─▶ update of each piece in it ─▶ state and 16-bit parameters are written where they live
//
// Every element is updated by itself, so tiles change no bit.
#include <algorithm>

#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }
DType state_dtype(const Unit& unit) { return unit.dtype == f64 ? f64 : f32; }

}  // namespace

struct Stage::Tile {
  size_t unit = 0;
  dist::Range range;                   // of the shard
  std::vector<Extent> extents;         // what of it lies in files
  std::map<std::string, int64_t> at;   // where in its buffer the values of each name are
  int64_t shard_at = -1;               // and the parameters; -1: in memory

  Tensor view(const Tensor& buffer, int64_t where, dist::Range part, DType dtype) const {
    return Tensor(buffer.storage(), where / size_of(dtype) + part.begin - range.begin, {part.size()}, {1}, dtype);
  }
};

/// What the optimizer keeps for a parameter. It alone knows, so it is asked with one of one element.
std::vector<std::string> Stage::keys_of(const Parameter& p) const {
  const bool wide = size_of(p.variable.dtype()) >= 4;
  const TensorOptions like{.dtype = wide ? p.variable.dtype() : f32, .device = cpu};
  Tensor one = zeros({1, 1}, like), low;
  optim::ParameterState state{.step = 1, .tensors = {}};
  p.optimizer->update(p.group, one, zeros({1, 1}, like), state, low, 1);
  std::vector<std::string> keys;
  if (!wide) keys.push_back("master");
  for (const auto& [key, tensor] : state.tensors) if (tensor.defined()) keys.push_back(key);
  return keys;
}

/// Elements: blocks of a file hold whole elements of every type.
int64_t Stage::tile_size(const Unit& unit) const {
  for (const Piece& piece : unit.pieces) if (!parameters[piece.parameter].optimizer->is_elementwise()) return std::max<int64_t>(unit.layout.shard, 1);
  return std::max(options.sub_group_size / file_block * file_block, file_block);
}

/// Of the buffer of its largest tile; 0: nothing of it lies in a file.
int64_t Stage::tile_bytes(const Unit& unit) const {
  if (unit.pieces.empty()) return 0;
  const int64_t n = std::min(tile_size(unit), unit.layout.shard);
  return int64_t(unit.regions.size()) * round_to_block(n * size_of(state_dtype(unit))) + (unit.swapped ? round_to_block(n * size_of(unit.dtype)) : 0);
}

/// Those in which something is to do.
std::vector<Stage::Tile> Stage::tiles_of(size_t u, const std::vector<bool>& used) {
  const Unit& unit = units[u];
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
    int64_t end = 0;
    const auto add = [&](const SwapFile& file, int64_t offset, int64_t bytes, bool reads) {
      tile.extents.push_back({&file, offset, end, round_to_block(bytes), reads});
      return std::exchange(end, end + round_to_block(bytes));
    };
    if (writes_state) for (const auto& [key, offset] : unit.regions) tile.at[key] = add(*swap_.states, offset + begin * width, tile.range.size() * width, reads_state);
    if (unit.swapped) {  // 16-bit parameters are rounded anew from master weights
      tile.shard_at = add(*swap_.shards, unit.shard_at + begin * size_of(unit.dtype), tile.range.size() * size_of(unit.dtype), !all_rounded);
    }
    tiles.push_back(std::move(tile));
  }
  return tiles;
}

void Stage::update(const std::vector<bool>& used, double scale, double clip) {
  std::vector<Tile> tiles;
  std::vector<std::vector<Extent>> in_files;
  for (size_t u = 0; u < units.size(); ++u) {
    for (Tile& tile : tiles_of(u, used)) {
      if (!tile.extents.empty()) in_files.push_back(tile.extents);
      tiles.push_back(std::move(tile));
    }
  }
  if (swap_.tiles) on_files([&] { swap_.tiles->begin(std::move(in_files)); });
  auto tile = tiles.begin();
  for (size_t u = 0; u < units.size(); ++u) {
    Unit& unit = units[u];
    if (!unit.trains) continue;
    for (; tile != tiles.end() && tile->unit == u; ++tile) {
      Tensor buffer;
      if (!tile->extents.empty()) on_files([&] { buffer = swap_.tiles->load(); });
      for (Piece& piece : unit.pieces) {
        const dist::Range part{std::max(piece.at, tile->range.begin), std::min(piece.at + piece.range.size(), tile->range.end)};
        if (!used[piece.parameter] || part.begin >= part.end) continue;
        const Tensor g = gradient(unit, part.begin, part.size(), scale);
        if (!(clip >= 1)) mul_scalar_(g, clip);
        update(unit, piece, part, g.to(home_of(piece)), *tile, buffer);
      }
      if (buffer.defined()) on_files([&] { swap_.tiles->store(); });
    }
    for (Piece& piece : unit.pieces) piece.started |= used[piece.parameter];
    publish(unit);
  }
  if (swap_.tiles) on_files([&] { swap_.tiles->end(); });
}

/// optim::Optimizer::step() for elements of the shard that a piece owns: 16-bit weights have an f32 master copy, and get it rounded.
void Stage::update(Unit& unit, Piece& piece, dist::Range part, const Tensor& gradient, const Tile& tile, const Tensor& buffer) {
  const Parameter& p = parameters[piece.parameter];
  const bool is_whole = part.size() == piece.range.size(), in_file = piece.home == Offload::nvme;
  const auto place = [&](const std::string& key) {  // of the part's values of that name; undefined: there is none yet
    if (in_file) {
      const auto found = tile.at.find(key);
      LOCKSTEP_CHECK(found != tile.at.end(), "[offload] the optimizer now keeps '", key, "' for ", p.name, ", which the file has no room for; offload to cpu, or keep its options as they were");
      return tile.view(buffer, found->second, part, state_dtype(unit));
    }
    const Tensor& all = piece.state[key];
    return all.defined() ? all.narrow(0, part.begin - piece.at, part.size()) : Tensor();
  };
  optim::ParameterState state{.step = p.steps, .tensors = {}};
  if (piece.started) {
    std::vector<std::string> keys;
    if (in_file) keys = piece.keys;
    else for (const auto& [key, tensor] : piece.state) if (tensor.defined()) keys.push_back(key);
    for (const std::string& key : keys) state.tensors[key] = place(key);
  }
  const Tensor lives = tile.shard_at >= 0 ? tile.view(buffer, tile.shard_at, part, unit.dtype) : weight(unit, piece).narrow(0, part.begin - piece.at, part.size());
  const Tensor here = lives.to(home_of(piece));
  Tensor w = here, low;
  const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
  if (size_of(unit.dtype) == 2) {
    Tensor& master = state.tensors["master"];
    if (!master.defined()) master = w.to(f32);
    low = w;
    w = master;
  }
  Tensor g = gradient;
  if (!p.optimizer->is_elementwise()) {  // such a rule wants the parameter as it is
    w = w.view(p.variable.shape());
    g = g.view(p.variable.shape());
    if (low.defined()) low = low.view(p.variable.shape());
  }
  for (auto& [key, tensor] : state.tensors) if (tensor.defined()) tensor = tensor.view(w.shape());
  const std::map<std::string, Tensor> before = state.tensors;
  p.optimizer->update(p.group, w, g, state, low, 1);
  if (here.storage() != lives.storage()) lives.copy_(here);  // on another device
  for (const auto& [key, tensor] : state.tensors) {
    const auto old = before.find(key);
    const bool is_new = tensor.defined() && (old == before.end() || !old->second.defined() || tensor.storage() != old->second.storage());
    if (!is_new && piece.started) continue;  // it lies where it belongs
    if (!tensor.defined()) continue;
    tensor.storage()->book_as(MemoryScope::current());
    if (in_file || !is_whole) {
      if (!in_file && !piece.state[key].defined()) piece.state[key] = zeros({piece.range.size()}, {.dtype = tensor.dtype(), .device = tensor.device()});
      place(key).copy_(flat(tensor));
    } else {
      piece.state[key] = flat(tensor);
    }
  }
}

}  // namespace lockstep::zero
