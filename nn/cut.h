#pragma once
// How a field of a module can be cut over ranks, said once, where fields() names it:
//
//   f("up", up, cut::columns)("down", down, cut::rows);                                        // an MLP
//   f("in_proj", in_proj, cut::heads(heads, kv_heads))("out_proj", out_proj, cut::rows);       // attention: whole
//   heads f("norm", norm, cut::tokens);                                                              // may get a part
//   of the sequence
//
// nn/ does nothing with it; those who cut a model (parallel/tensor/), or ask what it would cost, read it.
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/shape.h"

namespace lockstep::nn {

struct Cut {
  enum class Kind {
    none,        ///< whole; what is below says its own
    whole,       ///< whole with all that is below it
    columns,     ///< a Linear's outputs
    rows,        ///< a Linear's inputs
    vocabulary,  ///< rows of a table: Embedding, Head
    features,    ///< works on each feature (of the last dim) alone, behind columns: gets some of them, and of its
                 ///< parameters those
    tokens,      ///< works on each token alone: may get a part of the sequence (dim -2)
    experts,     ///< one of those that ranks may share out
  };
  /// Outputs that are cut each for itself: so many units of one size; 0: as long as its neighbours.
  struct Block {
    std::string unit;
    int64_t count = 0;
    friend bool operator==(const Block&, const Block&) = default;
  };
  Kind kind = Kind::none;
  std::vector<Block> blocks = {};  ///< columns; empty: one
  bool from_whole = false,
       to_whole = false;  ///< the input comes whole (rows, tokens), the output is gathered (columns, tokens)
  friend bool operator==(const Cut&, const Cut&) = default;
};
/// "heads and kv_heads", "columns of 3 blocks", "rows from whole"
std::string to_string(const Cut& cut);
/// The dim along which a parameter of a field with this cut is cut; -1: it stays whole.
int dim_of(const Cut& cut, const Shape& parameter);
/// What `dim` holds there, blocks that add up to `size`. Error, which names `field`, where they cannot.
std::vector<int64_t> blocks_of(const Cut& cut, int64_t size, const std::string& field);

namespace cut {
inline const Cut whole{Cut::Kind::whole}, columns{Cut::Kind::columns}, rows{Cut::Kind::rows},
    rows_of_vocabulary{Cut::Kind::vocabulary}, features{Cut::Kind::features}, tokens{Cut::Kind::tokens},
    experts{Cut::Kind::experts};
inline Cut heads(int64_t heads, int64_t kv_heads) {
  return {Cut::Kind::columns, {{"heads", heads}, {"kv_heads", kv_heads}, {"kv_heads", kv_heads}}};
}
/// `n` layers packed into one.
inline Cut packed_columns(int64_t n) {
  return {Cut::Kind::columns, std::vector<Cut::Block>(size_t(n), {"parts of the outputs", 0})};
}
inline Cut from_whole(Cut cut) { return cut.from_whole = true, cut; }
inline Cut to_whole(Cut cut) { return cut.to_whole = true, cut; }
}  // namespace cut

}  // namespace lockstep::nn
