#pragma once
// Who owns which part of which parameter: the one question that ZeRO asks (Rajbhandari et al., ZeRO: memory
// optimizations toward training trillion parameter models, SC 2020, arXiv:1910.02054). Pure functions of sizes, the
// same on every rank.
//
// Parameters that travel together form a *unit*: they lie one after another in flat memory, the *whole*, which is cut
// into one *shard* per rank, all of one length, as collectives want them. Three parameters a, b and c on 4 ranks:
//
//              rank 0              rank 1              rank 2              rank 3
//   whole   │ a a a . b b b b b │ b b b b b b b b b │ b b b b c c c c c │ c c c c c . . . . │        . padding
//              a whole, b from      b                   b to its end,       c to its end
//              its beginning                            c from its beginning
//
// Cuts fall on block boundaries. The norm of a gradient is a sum over blocks of `norm_block` elements of each parameter
// (tensor/cpu/reduce.cpp), so every block lies on one rank, and the norm has the same bits for any number of ranks.
// Hence the gap before b.
//
// Cost: at most 16 elements of padding a parameter, and 2 * world * norm_block a unit, mostly far less; padding() says
// how many exactly. Rules that look at a whole parameter (LAMB, Muon) cannot be cut: then one rank is the *owner* of
// it, and the others have nothing.
#include <cstdint>
#include <string>
#include <vector>

#include "dist/shard.h"

namespace lockstep::zero {

inline constexpr int64_t norm_block = 4096;  ///< elements of a parameter whose squares are summed in one go
inline constexpr int64_t alignment = 16;     ///< parameters and shards start at a multiple of it

inline int64_t norm_blocks(int64_t numel) { return (numel + norm_block - 1) / norm_block; }

/// A unit: where its parameters lie in the whole, and who has what.
struct Layout {
  int world = 1;
  int owner = -1;                ///< the rank that has all of it; -1: every rank has a shard
  int64_t shard = 0;             ///< elements of a rank's shard (of the owner's)
  std::vector<int64_t> sizes;    ///< elements of each parameter
  std::vector<int64_t> offsets;  ///< where it starts in the whole

  int64_t numel() const;  ///< of the parameters together
  int64_t whole() const { return owner < 0 ? world * shard : shard; }
  int64_t padding() const { return whole() - numel(); }
  /// A rank's part of the whole; dist::shard_range() when there is no owner.
  dist::Range range(int rank) const;
  /// What of parameter i lies there, counted in elements of the parameter.
  dist::Range owned(size_t i, int rank) const;
};

/// Parameters that travel together (units.h says which).
struct PlannedUnit {
  std::string module;              ///< stage 3: who gathers it
  std::vector<size_t> parameters;  ///< places in the list of all
  Layout layout;
  bool persistent = true;  ///< whole on every rank at all times (always below stage 3)
  int ranks = 1;           ///< that have its parameters, and sum their gradients
};

/// Cut into `world` shards.
Layout lay_out(std::vector<int64_t> sizes, int world);
/// Not cut: all of it belongs to `owner`.
Layout lay_out_at(std::vector<int64_t> sizes, int world, int owner);

/// An owner for each parameter: the largest first, always to the rank that has the least so far.
std::vector<int> assign_owners(const std::vector<int64_t>& sizes, int world);

/// Bytes of model state at each rank, the paper's formulas for psi parameters without padding: `bytes` for a parameter
/// and for a gradient (2 for f16 and bf16), k for what the optimizer keeps (12 for Adam with master weights).
struct ModelState {
  double parameters = 0, gradients = 0, optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};
ModelState model_state(int stage, double psi, int world, double bytes = 2, double k = 12);

}  // namespace lockstep::zero
