#pragma once
// Decides which rank owns which part of which parameter (Rajbhandari et al., ZeRO: memory optimizations toward training
// trillion parameter models, SC 2020, arXiv:1910.02054). All functions are pure: from the same sizes every rank
// computes the same.
//
// Parameters that are communicated together form a *unit*. They lie one after another in flat memory, the *whole*,
// which is cut into one *shard* per rank, all of the same length. Three parameters a, b and c on 4 ranks:
//
//             rank 0              rank 1              rank 2              rank 3
//   whole   │ a a a . b b b b b │ b b b b b b b b b │ b b b b c c c c c │ c c c c c . . . . │        . padding
//             all of a,           b                   the end of b,       the end of c
//             the start of b                          the start of c
//
// Cuts fall on block boundaries. The norm of a gradient is a sum over blocks of `norm_block` elements of each parameter
// (tensor/cpu/reduce.cpp), so every block must lie on one rank, and then the norm has the same bits for any number of
// ranks. This is the reason for the gap before b.
//
// Cost: at most 16 elements of padding per parameter, and 2 * world * norm_block per unit, usually far less; padding()
// is exact. Rules that look at a whole parameter (LAMB, Muon) cannot be cut: one rank, the *owner*, has the whole unit.
#include <cstdint>
#include <string>
#include <vector>

#include "dist/shard.h"
#include "tensor/tensor.h"

namespace lockstep::zero {

inline constexpr int64_t norm_block = 4096;  ///< elements of a parameter whose squares are summed as one block
inline constexpr int64_t alignment = 16;     ///< parameters and shards start at multiples of this many elements

inline int64_t norm_blocks(int64_t numel) { return (numel + norm_block - 1) / norm_block; }  ///< blocks of a parameter

/// Layout of a unit: the places of its parameters in flat memory (the whole), and the shards of this memory.
struct Layout {
  int world = 1;
  int owner = -1;                ///< the rank that has the whole unit; -1: every rank has a shard
  int64_t shard = 0;             ///< elements of each rank's shard; with an owner, of its only shard
  std::vector<int64_t> sizes;    ///< elements of each parameter
  std::vector<int64_t> offsets;  ///< first element of each parameter in the whole

  int64_t numel() const;                                              ///< elements of all parameters
  int64_t full() const { return owner < 0 ? world * shard : shard; }  ///< elements of the whole, with padding
  int64_t padding() const { return full() - numel(); }                ///< elements of padding
  /// The range of the unit's flat memory that a rank owns: its shard, or, if the unit has an owner, all or nothing.
  dist::Range range(int rank) const;
  /// The elements of parameter i that a rank owns, counted from the parameter's start; {0, 0} for none.
  dist::Range owned(size_t i, int rank) const;
};

/// Parameters that are communicated together, as planned by units.h.
struct PlannedUnit {
  std::string module;              ///< stage 3: the module that gathers them
  std::vector<size_t> parameters;  ///< indices in the list of all parameters
  Layout layout;
  bool persistent = true;  ///< true: whole on every rank at all times (always true below stage 3)
  int ranks = 1;           ///< number of ranks that have these parameters and sum their gradients
};

/// A piece of a tensor: elements `range` of the flattened tensor `name`. A checkpoint has all pieces of each tensor.
struct StatePiece {
  std::string name;   ///< "model.h.0.weight", "optimizer.exp_avg.h.0.weight"
  Shape shape;        ///< shape of the whole tensor
  dist::Range range;  ///< the piece's elements of the whole tensor
  Tensor tensor;      ///< shares the state's memory: read it, or write into it to load
};

/// The layout of parameters of these sizes, divided into `world` shards.
Layout lay_out(std::vector<int64_t> sizes, int world);
/// The layout of a unit that is not divided: the rank `owner` has all of it.
Layout lay_out_at(std::vector<int64_t> sizes, int world, int owner);

/// An owner for each parameter: in order of decreasing size, each goes to the rank with the fewest elements so far.
std::vector<int> assign_owners(const std::vector<int64_t>& sizes, int world);

/// Bytes of model state on each rank by the formulas of the ZeRO paper, without padding.
struct ModelState {
  double parameters = 0, gradients = 0, optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }  ///< bytes of all three
};
/// Evaluates the formulas of the ZeRO paper for a stage from 0 to 3. psi: number of parameters; bytes: bytes of a
/// parameter, and of a gradient (2 for f16 and bf16); k: bytes per parameter that the optimizer keeps (12 for Adam with
/// master weights).
ModelState model_state(int stage, double psi, int world, double bytes = 2, double k = 12);

}  // namespace lockstep::zero
