#pragma once
// The all-reduce that sends one bit for a number, and remembers what it lost (Seide et al., 2014; arXiv:2102.02888):
//
//   worker, every rank      x + e, in one chunk for each rank ──▶ signs and a scale;  e = what they lose
//   all_to_all: chunk r to rank r
//   server, of its chunk    mean of the chunks + E ─────────────▶ signs and a scale;  E = what they lose
//   all_gather
//   every rank              the servers' signs and scales, the same bytes on all ranks
//
// What is lost is added to the next call's numbers, so nothing is lost for good. At any time, over all calls so far:
//
//   sum of results + E + mean of e over ranks = sum of the means that an exact all-reduce gives   (but for rounding)
//
// Cost: 2 (n - 1) messages of 1 / n of the elements, a bit each, and a scale for every part of a tensor in them. An
// all-reduce of f32 moves 32 times that. Memory: 1 + 1 / n copies in f32 for e and E. The signs are made on the CPU;
// other tensors go through its memory.
#include <cstdint>
#include <string_view>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::onebit {

/// What one number stands for a list of n numbers x.
enum class Scale : uint8_t {
  rms,        ///< sqrt(sum x^2 / n), 1-bit Adam's
  magnitude,  ///< sum |x| / n, EF-SGD's (Karimireddy et al., arXiv:1901.09847): the one that loses least
};

struct CompressionOptions {
  Scale scale = Scale::rms;
  bool scale_per_tensor = true;  ///< a scale for each tensor in a chunk; false: one for the whole chunk
};

class CompressedAllReduce {
 public:
  using Options = CompressionOptions;
  /// Of tensors with that many elements, always the same ones. Ranks must agree.
  CompressedAllReduce(std::vector<int64_t> sizes, dist::ProcessGroup& group, const Options& options = {});

  /// Every tensor (f32, row-major) becomes the compressed mean over ranks, the same bits on all of them. 0 counts as
  /// positive. NaN and infinity spread to all that shares their scale, on all ranks. A group of one leaves everything
  /// as it is. Collective.
  void operator()(const std::vector<Tensor>& tensors, std::string_view tag = "signs");
  /// What this rank's signs lost, and what those of its chunk did, as they lie in memory: padded() and padded() / ranks
  /// elements. Undefined in a group of one.
  const Tensor& worker_errors() const { return worker_error_; }
  const Tensor& server_errors() const { return server_error_; }
  /// What a call sends from this rank.
  int64_t bytes_sent() const { return 2 * (group_.size() - 1) * message_bytes_; }
  /// Elements with padding: a multiple of n lcm(n, 8).
  int64_t padded() const { return chunk_ * group_.size(); }

 private:
  /// Part of a tensor that lies in one chunk. It starts at a whole byte of signs.
  struct Piece {
    size_t tensor;
    int64_t from;  // in the tensor
    int64_t at;    // in the chunk
    int64_t count;
    size_t scale;  // which of the chunk's
  };
  struct Chunk {
    std::vector<Piece> pieces;
    std::vector<int64_t> counts;  // elements of each scale
  };

  template <class Values>
  void compress(const Chunk& chunk, float* errors, const Values& values, uint8_t* message) const;
  void check(const std::vector<Tensor>& tensors) const;

  std::vector<int64_t> sizes_, offsets_;  // of the tensors; where they start
  dist::ProcessGroup& group_;
  Options options_;
  int64_t chunk_ = 0, message_bytes_ = 0;
  std::vector<Chunk> chunks_;
  Tensor worker_error_, server_error_;
};

}  // namespace lockstep::onebit
