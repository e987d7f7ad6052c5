#pragma once
// An all-reduce that sends one bit per element and compensates the error of compression (Seide et al., 2014;
// arXiv:2102.02888). Each rank is a worker for all chunks and the server of one chunk:
//
//   worker, every rank     x + e, cut into a chunk per rank ──▶ signs and scales;  e = the error that this leaves
//                          all_to_all: chunk r goes to rank r
//   server of a chunk      mean of the chunks + E ───────────▶ signs and scales;  E = the error that this leaves
//                          all_gather
//   every rank             the servers' signs and scales, the same bytes on all ranks
//
// Errors are added to the input of the next call, so that nothing is lost for good. Over all calls so far, up to
// rounding:
//
//   sum of results + E + mean of e over ranks  =  sum of the exact means
//
// Cost: every rank sends 2 (n - 1) messages of 1/n of the elements, one bit each, plus a scale per tensor in a chunk:
// 1/32 of what an f32 all-reduce sends. Memory: 1 + 1/n copies in f32 for e and E. Signs are computed on the CPU;
// tensors on a device are copied to host memory and back.
#include <cstdint>
#include <string_view>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::onebit {

/// The scale of n numbers x, which are sent as ±scale.
enum class Scale : uint8_t {
  rms,        ///< sqrt(Σ x² / n), as in 1-bit Adam
  magnitude,  ///< Σ |x| / n, as in EF-SGD (Karimireddy et al., arXiv:1901.09847); has the smallest error
};

/// Options of CompressedAllReduce.
struct CompressionOptions {
  Scale scale = Scale::rms;
  bool scale_per_tensor = true;  ///< true: one scale per tensor in a chunk; false: one per chunk
};

/// A compressed all-reduce for a fixed list of tensors. It keeps the compression errors from call to call.
class CompressedAllReduce {
 public:
  using Options = CompressionOptions;
  /// sizes: the number of elements of each tensor, the same on all ranks and in all calls.
  CompressedAllReduce(std::vector<int64_t> sizes, dist::ProcessGroup& group, const Options& options = {});

  /// Replaces every tensor (f32, row-major) by its compressed mean over ranks, bit-identical on all of them. 0 has the
  /// sign +. NaN and infinity spread to all elements with the same scale, on all ranks. In a group of one rank nothing
  /// changes. Error unless the tensors are f32 and have the constructor's sizes. Collective.
  void operator()(const std::vector<Tensor>& tensors, std::string_view tag = "signs");
  /// Compression error of this rank as a worker: padded() elements, laid out as in messages. Undefined for one rank.
  const Tensor& worker_errors() const { return worker_error_; }
  /// Compression error of this rank as the server of its chunk: padded() / ranks elements. Undefined in a group of one.
  const Tensor& server_errors() const { return server_error_; }
  /// Bytes that this rank sends in a call.
  int64_t bytes_sent() const { return 2 * (group_.size() - 1) * message_bytes_; }
  /// Number of elements with padding: a multiple of n * lcm(n, 8) for n ranks.
  int64_t padded() const { return chunk_ * group_.size(); }

 private:
  /// The part of a tensor that lies in one chunk. In a message, its signs begin at a byte boundary.
  struct Piece {
    size_t tensor;
    int64_t from;  // first element in the tensor
    int64_t at;    // first element in the chunk
    int64_t count;
    size_t scale;  // index of the piece's scale among the chunk's scales
  };
  struct Chunk {
    std::vector<Piece> pieces;
    std::vector<int64_t> counts;  // elements that share each scale
  };

  template <class Values>
  void compress(const Chunk& chunk, float* errors, const Values& values, uint8_t* message) const;
  void check(const std::vector<Tensor>& tensors) const;

  std::vector<int64_t> sizes_;  // elements of each tensor
  dist::ProcessGroup& group_;
  Options options_;
  int64_t chunk_ = 0, message_bytes_ = 0;
  std::vector<Chunk> chunks_;
  Tensor worker_error_, server_error_;
};

}  // namespace lockstep::onebit
