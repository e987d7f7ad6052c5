#pragma once
// The optimizer over shards: each rank updates the elements that it owns, tile by tile. The optimizer's state is kept
// where the option offload_optimizer says.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/offload/shard_store.h"
#include "zero/offload/tile_ring.h"

namespace lockstep::zero {

/// Updates this rank's pieces of all parameters.
class ShardedOptimizer {
 public:
  /// Divides the pieces into offloaded ones and others, by offload_optimizer.ratio. Creates the file for nvme.
  explicit ShardedOptimizer(Stage& stage);
  /// Updates the parameters for which used[i] is true. Gradients are multiplied by `scale` and `clip`.
  void update(const std::vector<bool>& used, double scale, double clip);
  /// For a recorded step: collects the numbers that update() needs (learning rates, step counts) in Stage::batch. Error
  /// if the kernels of StepBatch cannot update some parameter.
  void collect_numbers(const std::vector<bool>& used);

  /// The optimizer's state of a piece by name, flat; writes to it change the state. Empty before the first step.
  std::map<std::string, Tensor> kept(Unit& unit, Piece& piece);
  /// Returns the state like kept(), but creates it first, as zeros, if there is none.
  std::map<std::string, Tensor> make_kept(Unit& unit, Piece& piece);
  /// Updates the master copy of a 16-bit parameter that was written to since the last step.
  void follow_writes(Unit& unit, Piece& piece);
  void follow_writes();

 private:
  /// A range of a unit's shard, and its bytes in files.
  struct Tile {
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
  Device home_of(const Piece& piece) const { return piece.home == Offload::none ? s_.device : Device(cpu); }
  std::map<std::string, DType> keys_of(const Parameter& p) const;
  void find_homes();
  int64_t plan_regions(size_t u, int64_t end);
  /// True if a 16-bit parameter was written to since its master copy was made. False for units that stage 3 shards:
  /// only gathered() can write to such units, and gathered() updates the master copy itself.
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

  static DType state_dtype(const Unit& unit) { return unit.dtype == f64 ? f64 : f32; }

  Stage& s_;
  const ShardStore* const store_;                        // parameter shards; null below stage 3
  std::vector<std::map<std::string, int64_t>> regions_;  // by unit: offset in the file of each state name's region
  std::optional<SwapFile> file_;
  std::optional<FileQueue> queue_;
  std::optional<TileRing> ring_;
};

}  // namespace lockstep::zero
