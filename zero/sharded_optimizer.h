#pragma once
// The optimizer over shards: each rank updates the elements that it owns, tile by tile. The optimizer's state is kept
// where the option offload_optimizer says.
#include <map>
#include <string>
#include <vector>

#include "zero/offload/tiles.h"

namespace lockstep::zero {

/// Updates this rank's pieces of all parameters.
class ShardedOptimizer {
 public:
  explicit ShardedOptimizer(Stage& stage) : s_(stage), tiles_(stage) {}  ///< `stage` must have its units and pieces
  /// Updates the parameters for which used[i] is true. Gradients are multiplied by `scale` and `clip`.
  void update(const std::vector<bool>& used, double scale, double clip);
  /// For a step recorded in a graph: stores in Stage::batch the numbers that update() needs in each replay (learning
  /// rates, step counts). Error if the kernels of StepBatch cannot update some parameter.
  void collect_numbers(const std::vector<bool>& used);

  /// The optimizer's state for a piece, as flat tensors by name; writes to them change the state. Before the first step
  /// it is empty, unless `create_missing` is true: then missing state is first created as zeros.
  std::map<std::string, Tensor> state_of(Unit& unit, OwnedPiece& piece, bool create_missing = false);
  /// Copies values that the user wrote to a 16-bit parameter into its master copy.
  void update_master_copy(Unit& unit, OwnedPiece& piece);
  void update_master_copies();  ///< the same for all parameters that were written to since the last step

 private:
  Device home_of(const OwnedPiece& piece) const { return piece.home == Offload::none ? s_.device : Device(cpu); }
  void update(Unit& unit, OwnedPiece& piece, dist::Range elements, Tensor gradient, const Tile& tile, bool collects);

  Stage& s_;
  Tiles tiles_;
};

}  // namespace lockstep::zero
