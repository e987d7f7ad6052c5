#pragma once
// A Cut says how ranks may shard a field of a module, i.e. a parameter or child module (tensor and sequence
// parallelism). A module's fields() passes the Cut together with the field's name:
//
//   f("up", up, cut::columns)("down", down, cut::rows);                                   // an MLP
//   f("in_proj", in_proj, cut::heads(heads, kv_heads))("out_proj", out_proj, cut::rows);  // attention: by whole heads
//   f("norm", norm, cut::tokens);                                                         // shards the sequence
//
// nn/ itself does not use cuts. They are for code that shards a model (parallel/tensor_parallel/) or estimates what it
// costs.
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/shape.h"

namespace lockstep::nn {

/// One way to shard a field.
struct Cut {
  /// The dimension of the computation that is divided among ranks.
  enum class Kind {
    none,        ///< replicated; the modules below it state their own cuts
    full,        ///< replicated with everything below it
    columns,     ///< the outputs of a Linear (column parallel)
    rows,        ///< the inputs of a Linear (row parallel); the ranks' outputs are summed
    vocabulary,  ///< rows of a table: Embedding, Head
    features,    ///< computes each feature (last dim) separately; after columns, x has only this rank's features
    tokens,      ///< computes each token separately; may run on a part of the sequence (dim -2)
    experts,     ///< one of several experts, which are divided among ranks
  };
  /// A range of a Linear's outputs that is divided among ranks separately: the queries, the keys, or the values. It has
  /// `count` units (heads) of equal size. If count is 0 in all blocks, the blocks have equal length.
  struct Block {
    std::string unit;
    int64_t count = 0;
    friend bool operator==(const Block&, const Block&) = default;
  };
  Kind kind = Kind::none;
  std::vector<Block> blocks = {};  ///< columns only; empty: a single block
  /// from_full: the field's input arrives unsharded; only with Kind::rows or Kind::tokens. to_full: ranks gather the
  /// field's output; only with Kind::columns or Kind::tokens.
  bool from_full = false, to_full = false;
  friend bool operator==(const Cut&, const Cut&) = default;
};
/// Describes a cut in messages, such as "columns of 8 heads and 2 kv_heads and 2 kv_heads", "rows from full".
std::string to_string(const Cut& cut);
/// Returns the dim along which ranks shard a parameter of a field with this cut; -1: every rank holds all of it.
int dim_of(const Cut& cut, const Shape& parameter);
/// Sizes of the cut's blocks (such as queries, keys, values) in a Linear with `size` outputs. Error, which names
/// `field`, if the blocks' units cannot have equal sizes.
std::vector<int64_t> blocks_of(const Cut& cut, int64_t size, const std::string& field);

namespace cut {
/// The ways to shard a field that need no further options.
inline const Cut full{Cut::Kind::full}, columns{Cut::Kind::columns}, rows{Cut::Kind::rows},
    rows_of_vocabulary{Cut::Kind::vocabulary}, features{Cut::Kind::features}, tokens{Cut::Kind::tokens},
    experts{Cut::Kind::experts};
/// How to shard in_proj of attention: ranks get whole heads of the queries, of the keys and of the values.
inline Cut heads(int64_t heads, int64_t kv_heads) {
  return {Cut::Kind::columns, {{"heads", heads}, {"kv_heads", kv_heads}, {"kv_heads", kv_heads}}};
}
/// How to shard a Linear that consists of `n` column-parallel Linears of equal size: each of these is sharded
/// separately.
inline Cut packed_columns(int64_t n) {
  return {Cut::Kind::columns, std::vector<Cut::Block>(size_t(n), {"parts of the outputs", 0})};
}
/// Returns a copy of `cut` that says that the field's input arrives unsharded.
inline Cut from_full(Cut cut) { return cut.from_full = true, cut; }
/// Returns a copy of `cut` that says that the ranks gather the field's output.
inline Cut to_full(Cut cut) { return cut.to_full = true, cut; }
}  // namespace cut

}  // namespace lockstep::nn
