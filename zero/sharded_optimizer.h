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
  /// For a recorded step: collects the numbers that update() needs (learning rates, step counts) in Stage::batch. Error
  /// if the kernels of StepBatch cannot update some parameter.
  void collect_numbers(const std::vector<bool>& used);

  /// The optimizer's state of a piece by name, flat; writes to it change the state. Before the first step it is empty,
  /// unless `make` is true: then missing state is first created as zeros.
  std::map<std::string, Tensor> kept(Unit& unit, OwnedPiece& piece, bool make = false);
  /// Gives the master copy of a 16-bit parameter the values that were written to the parameter.
  void follow_writes(Unit& unit, OwnedPiece& piece);
  void follow_writes();  ///< the same for all parameters that were written to since the last step

 private:
  Device home_of(const OwnedPiece& piece) const { return piece.home == Offload::none ? s_.device : Device(cpu); }
  void update(Unit& unit, OwnedPiece& piece, dist::Range elements, Tensor gradient, const Tile& tile, bool collects);

  Stage& s_;
  Tiles tiles_;
};

}  // namespace lockstep::zero
