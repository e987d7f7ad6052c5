#pragma once
// Cuts shards into tiles: sub_group_size elements of a unit's shard, which are updated at a time. This limits the
// memory for f32 gradients and for data read from files. With offload to nvme, this rank's file has one region for each
// state tensor of each unit:
//
//   shards    unit 0  │ a a a b b b b b . │     unit 1  │ c c c c c c . . │
//
//   file      │ exp_avg of unit 0 │ exp_avg_sq of unit 0 │ master of unit 0 │ exp_avg of unit 1 │ ...
//
// A region holds one number for each element of the unit's shard, padding included, so a tile is one run of bytes in
// each region.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/offload/shard_store.h"
#include "zero/offload/tile_ring.h"

namespace lockstep::zero {

/// A range of a unit's shard, and its bytes in files.
struct Tile {
  dist::Range range;                       ///< elements of the shard
  std::vector<Extent> extents = {};        ///< where the tile's parts lie in files
  int64_t bytes = 0;                       ///< size of the tile's buffer
  std::map<std::string, int64_t> at = {};  ///< offset of each state tensor in the buffer
  int64_t shard_at = -1;                   ///< offset of the parameters in the buffer; -1: they are in memory
  Tensor buffer = {};                      ///< bytes of all extents while the tile is updated

  // `elements`: elements of the shard that belong to the tile and to a piece of parameter p.
  /// The elements `elements` of the tensor that begins at offset `where` of the buffer.
  Tensor in_buffer(int64_t where, dist::Range elements, DType dtype) const {
    return Tensor(buffer.storage(), where / size_of(dtype) + elements.begin - range.begin, {elements.size()}, {1},
                  dtype);
  }
  /// The optimizer's state for `elements` that earlier steps have created, by name.
  std::map<std::string, Tensor> state(const Parameter& p, const OwnedPiece& piece, dist::Range elements) const;
  /// Stores the optimizer's state for `elements` after an update. Error for state that the file has no space for.
  void keep(const Parameter& p, OwnedPiece& piece, dist::Range elements,
            const std::map<std::string, Tensor>& state) const;

 private:
  Tensor in_file(const std::string& key, dist::Range elements, const Parameter& p) const;
};

/// The elements `elements` of a piece's state tensor. A state with one number per block of elements, as scales of 8-bit
/// states, is returned as it is: such a piece is never divided into parts.
inline Tensor elements_of(const Tensor& all, const OwnedPiece& piece, dist::Range elements) {
  return elements.size() == piece.range.size() ? all : all.narrow(0, elements.begin - piece.at, elements.size());
}

/// Names and dtypes of the state that the optimizer keeps for a parameter.
std::map<std::string, DType> keys_of(const Parameter& p);

/// The tiles of all units, and the file for state.
class Tiles {
 public:
  /// Divides the pieces into offloaded ones and others, by offload_optimizer.ratio. Creates the file for nvme.
  explicit Tiles(Stage& stage);
  /// Begins to read the tiles of an update of the parameters for which used[i] is true.
  void begin(const std::vector<bool>& used);
  /// Calls fn for each tile of a unit that has a used parameter, with the tile's buffer in memory. Call it for all
  /// units in order.
  void each(const Unit& unit, const std::vector<bool>& used, const std::function<void(const Tile&)>& fn);
  void end();  ///< waits until everything is written
  /// A state tensor of a piece in the file, mapped into memory.
  Tensor mapped(const Unit& unit, const OwnedPiece& piece, const std::string& key) const;

 private:
  void find_homes();
  int64_t plan_regions(const Unit& unit, int64_t end);
  std::vector<Tile> tiles_of(const Unit& unit, const std::vector<bool>& used) const;

  Stage& s_;
  const ShardStore* const store_;                        // parameter shards; null below stage 3
  std::vector<std::map<std::string, int64_t>> regions_;  // by unit: offset in the file of each state name's region
  std::optional<SwapFile> file_;
  std::optional<FileQueue> queue_;
  std::optional<TileRing> ring_;
};

}  // namespace lockstep::zero
