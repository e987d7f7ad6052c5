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

/// Elements of this rank's shard that belong to one piece and are updated together.
struct TilePart {
  OwnedPiece& piece;
  dist::Range elements;              ///< elements of the shard
  Tensor weight = {};                ///< the parameter's elements, on the device that updates them
  optim::ParameterState state = {};  ///< their state, as far as earlier steps have made it
};

/// The tiles of all units, and the file for state.
class Tiles {
 public:
  /// Creates the file if pieces have their home there.
  explicit Tiles(Stage& stage);
  /// Begins an update of the parameters for which used[i] is true: cuts the tiles, and starts the first reads.
  void begin(const std::vector<bool>& used);
  /// Calls fn for each part of each tile of the unit that an update changes, and stores the changed weight and state.
  /// Call it for all units in order. Error for state that the file has no space for.
  void each(Unit& unit, const std::function<void(TilePart&)>& fn);
  void end();  ///< waits until everything is written
  /// A state tensor of a piece in the file, mapped into memory.
  Tensor mapped(const Unit& unit, const OwnedPiece& piece, const std::string& key) const;

 private:
  struct Tile {
    dist::Range range;                       // elements of the shard
    std::vector<TilePart> parts = {};        // those of used parameters, without weight and state
    std::vector<Extent> extents = {};        // its bytes in files
    int64_t bytes = 0;                       // size of its buffer; 0: nothing of it lies in a file
    std::map<std::string, int64_t> at = {};  // offset of each region's bytes in the buffer
    Tensor buffer = {};                      // holds its bytes during each()
  };
  int64_t plan_regions(const Unit& unit, int64_t end);
  std::vector<Tile> tiles_of(Unit& unit, const std::vector<bool>& used) const;
  Tensor place(const Tile& tile, const TilePart& part, const std::string& key) const;

  Stage& s_;
  // By unit: offset of each region. "" names the region of parameters, in ShardStore's file; all others are names of
  // state.
  std::vector<std::map<std::string, int64_t>> regions_;
  std::vector<std::vector<Tile>> tiles_;  // of the running update, by unit
  std::optional<SwapFile> file_;
  std::optional<FileQueue> queue_;
  std::optional<TileRing> ring_;
};

}  // namespace lockstep::zero
