#pragma once
// The optimizer over shards: each rank updates what it owns, tile by tile, and what the optimizer keeps lies where
// offload_optimizer says.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/stage.h"
#include "zero/tile_ring.h"

namespace lockstep::zero {

class ShardedOptimizer {
 public:
  /// Cuts pieces in two where offload_optimizer.ratio does.
  explicit ShardedOptimizer(Stage& stage);
  /// Of parameters that were used; the others are left alone. Gradients are multiplied by both numbers.
  void update(const std::vector<bool>& used, double scale, double clip);
  /// Notes the numbers of such an update in the stage's batch, for one that is recorded. Error when not all is
  /// collected.
  void collect_numbers(const std::vector<bool>& used);

  /// What the optimizer keeps for a piece, live, flat; and the same, zeros when there was nothing.
  std::map<std::string, Tensor> kept(Unit& unit, Piece& piece);
  std::map<std::string, Tensor> make_kept(Unit& unit, Piece& piece);
  /// A master copy takes over what others have written to its 16-bit parameter.
  void follow_writes(Unit& unit, Piece& piece);
  void follow_writes();

 private:
  struct Tile;
  Device home_of(const Piece& piece) const {
    return piece.home == Offload::none ? s_.device : Device(cpu);
  }  // where it is updated
  std::map<std::string, DType> keys_of(const Parameter& p) const;
  void find_homes();
  int64_t plan_regions(size_t u, int64_t end);
  /// Others can write to its parameters without a word (in stage 3 only inside of gathered()), and have.
  bool is_behind(const Unit& unit, const Piece& piece) const {
    if ((store_ && !unit.persistent) || size_of(unit.dtype) != 2) return false;
    const Parameter& p = s_.parameters[piece.parameter];
    return p.seen == 0 || p.seen != p.variable.tensor().storage()->version();
  }
  bool is_collected(const Unit& unit) const;
  int64_t tile_size(const Unit& unit) const;
  std::vector<Tile> tiles_of(size_t u, const std::vector<bool>& used);
  void update(Unit& unit, Piece& piece, dist::Range part, const Tensor& gradient, const Tile& tile,
              const Tensor& buffer, bool collects);

  Stage& s_;
  const ShardStore* const store_;                        // of parameters, in stage 3
  std::vector<std::map<std::string, int64_t>> regions_;  // by unit, of the file: a shard of values of each name
  std::optional<SwapFile> file_;
  std::optional<FileQueue> queue_;
  std::optional<TileRing> ring_;
};

}  // namespace lockstep::zero
