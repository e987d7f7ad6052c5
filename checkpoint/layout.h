#pragma once
// Decides which rank writes which bytes of a checkpoint. Each rank tells all others which data it holds (Offer). Then
// make_layout(), a pure function of all offers, gives the same result on every rank without further communication.
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace lockstep::checkpoints {

/// The contents that a rank holds and can write, without the data of the tensors.
struct Offer : Contents {
  std::string error;  ///< reason why this rank cannot take part
};
/// Makes this rank's offer. The first problem of a piece becomes Offer::error.
Offer offer_of(const Contents& contents);
/// An offer as text, to be sent to other ranks.
std::string to_text(const Offer& offer);
Offer parse_offer(std::string_view text, const std::string& origin);  ///< the inverse of to_text()

/// Checks a piece; returns its first problem, or "".
std::string check_piece(const Piece& piece);

/// The result of make_layout().
struct Assignment {
  /// A range of elements of one piece.
  struct Chunk {
    size_t piece = 0;  ///< index among the rank's pieces
    int64_t begin = 0;
    int64_t end = 0;
  };
  /// A part of a tensor that one rank writes.
  struct Write {
    std::string tensor;
    size_t part = 0;            ///< index among the tensor's parts
    std::vector<Chunk> chunks;  ///< ranges that it consists of, in order
  };
  Manifest manifest;                       ///< the manifest, with tensors, aliases and numbers only
  std::vector<std::vector<Write>> writes;  ///< by rank, in the order of tensors and parts
};
/// Name of the file that a rank writes: "rank-00000.safetensors".
std::string file_of_rank(int rank);
/// Assigns every element to one of the ranks that hold it. of_rank[r] is the index in `offers` of rank r's offer; ranks
/// with equal offers share an index. The Error names the tensor, the ranks and the problem: different shapes, gaps,
/// overlaps, or one of Contents::numbers that differs between ranks.
Assignment make_layout(const std::vector<Offer>& offers, const std::vector<size_t>& of_rank);

}  // namespace lockstep::checkpoints
