#pragma once
// The optimizer over shards: each rank updates what it owns, tile by tile, and what the optimizer keeps lies where
// offload_optimizer says.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/shards.h"
#include "zero/tile_ring.h"

namespace lockstep::zero {

class ShardStore;

class ShardedOptimizer {
 public:
  /// store: of parameters, in stage 3. Cuts pieces in two where offload_optimizer.ratio does.
  ShardedOptimizer(Shards& shards, const ShardStore* store);

  /// What a stage says for an update.
  struct Step {
    std::vector<bool> used;  // by parameter: the others are left alone
    double clip = 1;
    std::function<Tensor(Unit& unit, const Piece& piece)> weight;  // the parameter's elements that a piece owns, flat
    std::function<Tensor(Unit& unit, int64_t at, int64_t n)> gradient;  // of elements of the shard, scaled, in f32
    std::function<void(Unit& unit)> updated;                            // all of it
  };
  void update(const Step& step);

  /// What the optimizer keeps for a piece, live, flat; and the same, zeros when there was nothing.
  std::map<std::string, Tensor> kept(Unit& unit, Piece& piece);
  std::map<std::string, Tensor> make_kept(Unit& unit, Piece& piece);

 private:
  struct Tile;
  Device home_of(const Piece& piece) const {
    return piece.home == Offload::none ? s_.device : Device(cpu);
  }  // where it is updated
  std::vector<std::string> keys_of(const Parameter& p) const;
  void find_homes();
  int64_t plan_regions(size_t u, int64_t end);
  int64_t tile_size(const Unit& unit) const;
  int64_t tile_bytes(size_t u) const;
  std::vector<Tile> tiles_of(size_t u, const std::vector<bool>& used);
  void update(const Step& step, size_t u, Piece& piece, dist::Range part, const Tensor& gradient, const Tile& tile,
              const Tensor& buffer);

  Shards& s_;
  const ShardStore* const store_;
  std::vector<std::map<std::string, int64_t>> regions_;  // by unit, of the file: a shard of values of each name
  std::optional<SwapFile> file_;
  std::optional<FileQueue> queue_;
  std::optional<TileRing> ring_;
};

}  // namespace lockstep::zero
