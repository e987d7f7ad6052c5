#pragma once
// Products in chunks of rows, so that one chunk is multiplied while another is communicated:
//
//   row_linear: product, then sum over ranks               product 0 │ product 1 │ product 2 │
//                                                                    │ sum 0     │ sum 1     │ sum 2
//
//   column_linear with `sequence`: gather, then product    gather 0  │ gather 1  │ gather 2  │
//                                                                    │ product 0 │ product 1 │ product 2
//
// On a device only streams wait, never the host. A chunk holds whole sequences; if there is only one sequence, a chunk
// holds some tokens of every rank's part. On the CPU results are bit-identical to those of one product. On a device
// they may differ: a product's bits can depend on the number of rows, and a sum's bits on the position in memory.
#include <functional>

#include "parallel/tensor_parallel/functions.h"

namespace lockstep::tensor_parallel {

/// The default number of chunks on a device: 1 to 4. If there are several, each has at least 1024 rows.
int64_t automatic_chunks(int64_t rows);

/// Divides the rows of a tensor into chunks.
class Chunks {
 public:
  /// Divides a tensor of the shape `full`: (..., width), or with `sequence` (..., T, width), of which each of n ranks
  /// has T / n tokens. asked: the number of chunks; 0: automatic_chunks() on a device, 1 on the CPU. There are fewer
  /// chunks if there are not enough sequences (or tokens), or if a chunk's rows would not be a multiple of `multiple`.
  /// Error unless n divides T.
  Chunks(const Shape& full, bool sequence, int64_t asked, Device device, const dist::ProcessGroup& group,
         int64_t multiple = 1);
  int64_t count() const { return count_; }  ///< number of chunks
  /// True if a chunk's rows are not contiguous in the whole tensor, but come from every rank's part.
  bool apart() const { return apart_; }
  /// Returns chunk i of the whole tensor x, as a view (sequences, tokens, width). x must be contiguous.
  Tensor of_full(const Tensor& x, int64_t i) const { return cut(x, i, ranks_); }
  /// Returns chunk i of x, this rank's part of the tensor, as a contiguous view.
  Tensor of_part(const Tensor& x, int64_t i) const { return cut(x, i, 1); }
  /// Shape of the whole tensor if its last dim were `width`.
  Shape full_shape(int64_t width) const { return shape_of(ranks_, width); }
  /// Shape of this rank's part if its last dim were `width`.
  Shape part_shape(int64_t width) const { return shape_of(1, width); }
  bool of_sequence() const { return sequence_; }  ///< true if each rank has a part of the tokens

 private:
  Tensor cut(const Tensor& x, int64_t i, int64_t parts) const;
  Shape shape_of(int64_t parts, int64_t width) const;

  Shape full_;
  bool sequence_, apart_ = false;
  // With `sequence`: outer_ sequences, tokens_ tokens of each in one rank's part. Without: outer_ rows, tokens_ = 1.
  int64_t ranks_, outer_, tokens_;
  int64_t count_ = 1;
};

/// Sums product(x) over the ranks. The result is the whole sum, or this rank's part if chunks.of_sequence(). `product`
/// maps rows of x to as many rows of the result. With one chunk and without `background` the sum is complete on return.
Pending sum_of_products(const Tensor& x, const Chunks& chunks, dist::ProcessGroup& group, bool background,
                        const std::function<Tensor(const Tensor& rows)>& product);

/// Gathers the ranks' parts chunk by chunk and calls use(rows, i) with each chunk as a matrix. Returns the gathered
/// tensor if `keeps`, else an undefined tensor.
Tensor use_gathered(const Tensor& part, const Chunks& chunks, dist::ProcessGroup& group, bool keeps,
                    const std::function<void(const Tensor& rows, int64_t i)>& use);

}  // namespace lockstep::tensor_parallel
