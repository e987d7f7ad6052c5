#pragma once
// Who writes what: from what all ranks say that they have. Pure, so that every rank comes to the same without asking
// again.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

/// What a rank has: its contents without the bytes.
struct Offer : Contents {
  std::string error;  ///< why this rank cannot take part
};
/// Checks the pieces of this rank; what is wrong becomes `error`.
Offer offer_of(const Contents& contents);
std::string to_text(const Offer& offer);
Offer parse_offer(std::string_view text, const std::string& origin);

/// What is wrong with a piece, or "".
std::string check_piece(const Piece& piece);

struct Assignment {
  struct Chunk {
    size_t piece = 0;  ///< of the rank's pieces
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Write {
    std::string tensor;
    size_t part = 0;            ///< of that tensor's parts
    std::vector<Chunk> chunks;  ///< what it is made of, in order
  };
  Manifest manifest;                       ///< its tensors, aliases and numbers
  std::vector<std::vector<Write>> writes;  ///< by rank; in the order of tensors and parts
};
std::string file_of_rank(int rank);
/// `of_rank`: which of the offers each rank made, as many of them are equal. Error: names the tensor, the ranks and
/// what is wrong: shapes that differ, gaps, overlaps, numbers that differ.
Assignment make_layout(const std::vector<Offer>& offers, const std::vector<size_t>& of_rank);

}  // namespace lockstep::checkpoints
