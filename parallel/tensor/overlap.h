#pragma once
// Products in chunks of rows, so that one chunk is multiplied while another is on its way between the ranks:
//
//   a weight cut by columns of inputs       product 0 │ product 1 │ product 2
//                                                     │ sum 0     │ sum 1     │ sum 2
//   a weight cut by rows of outputs,        gather 0  │ gather 1  │ gather 2
//   whose input is in parts of a sequence             │ product 0 │ product 1 │ product 2
//
// On a device nobody waits but its streams. Of sequences a chunk has whole ones, or of one alone some tokens of each
// rank's part. Bits are those of one product where they depend neither on the number of rows nor, of a sum, on where it
// lies: on the CPU.
#include <functional>

#include "parallel/tensor/functions.h"

namespace lockstep::tensor_parallel {

/// How many on a device, of so many rows, where nobody says it: 4 as long as each has 1024.
int64_t automatic_chunks(int64_t rows);

/// How many: 0 is automatic, on the CPU 1.
class Chunks {
 public:
  /// Of (..., width), or with `sequence` of (..., T, width), of which every rank has T / n tokens: Error unless the
  /// ranks divide T. There are fewer than `asked` where there is less to cut, or no as many that have a multiple of
  /// `multiple` rows each.
  Chunks(const Shape& whole, bool sequence, int64_t asked, Device device, const dist::ProcessGroup& group,
         int64_t multiple = 1);
  int64_t count() const { return count_; }
  /// Rows of a chunk lie apart in the whole.
  bool apart() const { return apart_; }
  /// Views (sequences, tokens, width) of a contiguous tensor with the rows of the whole, or of this rank's part. Those
  /// of a part are contiguous.
  Tensor of_whole(const Tensor& x, int64_t i) const { return cut(x, i, ranks_); }
  Tensor of_part(const Tensor& x, int64_t i) const { return cut(x, i, 1); }
  /// The shape of a whole, or of a part, with another width.
  Shape whole_shape(int64_t width) const { return shape_of(ranks_, width); }
  Shape part_shape(int64_t width) const { return shape_of(1, width); }
  bool of_sequence() const { return sequence_; }

 private:
  Tensor cut(const Tensor& x, int64_t i, int64_t parts) const;
  Shape shape_of(int64_t parts, int64_t width) const;

  Shape whole_;
  bool sequence_, apart_ = false;
  int64_t ranks_, outer_, tokens_;  // sequences, and tokens of a part of each; or rows, and 1
  int64_t count_ = 1;
};

/// The sum over the ranks of product(x): whole, or this rank's part of the sequence. `product` makes of rows of x as
/// many of the result. With one chunk and without `background` it is there when this returns.
Pending sum_of_products(const Tensor& x, const Chunks& chunks, dist::ProcessGroup& group, bool background,
                        const std::function<Tensor(const Tensor& rows)>& product);

/// Calls use(rows, i) with each chunk of the whole of which every rank has a part, as a matrix. Gives back the whole
/// when `keeps`.
Tensor use_gathered(const Tensor& part, const Chunks& chunks, dist::ProcessGroup& group, bool keeps,
                    const std::function<void(const Tensor& rows, int64_t i)>& use);

}  // namespace lockstep::tensor_parallel
