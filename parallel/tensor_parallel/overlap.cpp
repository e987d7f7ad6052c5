// Chunks of products and collectives. See overlap.h.
#include "parallel/tensor_parallel/overlap.h"

#include <algorithm>

#include "dist/shard.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {

// 1024 rows keep a GPU busy. With 4 chunks, 3 are communicated during the product of another chunk. Only the first
// gather, or the last sum, overlaps with no product.
int64_t automatic_chunks(int64_t rows) { return std::clamp<int64_t>(rows / 1024, 1, 4); }

Chunks::Chunks(const Shape& full, bool sequence, int64_t asked, Device device, const dist::ProcessGroup& group,
               int64_t multiple)
    : full_(full), sequence_(sequence), ranks_(sequence ? group.size() : 1) {
  LOCKSTEP_CHECK(asked >= 0, "[tensor_parallel] expected chunks >= 0 (0: automatic), got ", asked);
  const auto front = full.begin();
  const int dims = full.rank();
  tokens_ = sequence ? full[dims - 2] : 1;
  outer_ = numel_of(Shape(front, front + dims - (sequence ? 2 : 1)));
  LOCKSTEP_CHECK(tokens_ % ranks_ == 0, "[reduce_scatter] expected a size that ", ranks_,
                 " ranks divide along dim -2, got ", full, "; pad it, or change the number of ranks");
  const int64_t rows = outer_ * tokens_;
  tokens_ /= ranks_;
  if (asked == 0) asked = device.is_cpu() ? 1 : automatic_chunks(rows);
  const bool by_tokens = sequence && outer_ == 1;
  const int64_t cut = by_tokens ? tokens_ : outer_, rows_of_one = rows / std::max<int64_t>(cut, 1);
  count_ = std::clamp<int64_t>(asked, 1, std::max<int64_t>(1, cut));
  if (multiple > 1)
    while (count_ > 1 && (cut % count_ > 0 || cut / count_ * rows_of_one % multiple > 0)) --count_;
  apart_ = by_tokens && count_ > 1;
}

Tensor Chunks::cut(const Tensor& x, int64_t i, int64_t parts) const {
  const int64_t width = x.size(-1);
  const dist::Range range = dist::shard_range(apart_ ? tokens_ : outer_, int(count_), int(i));
  if (apart_) return x.view({parts, tokens_, width}).narrow(1, range.begin, range.size());
  return x.view({outer_, parts * tokens_, width}).narrow(0, range.begin, range.size());
}

Shape Chunks::shape_of(int64_t parts, int64_t width) const {
  Shape shape = full_;
  const int dims = shape.rank();
  shape[dims - 1] = width;
  if (sequence_) shape[dims - 2] = parts * tokens_;
  return shape;
}

Pending sum_of_products(const Tensor& x, const Chunks& chunks, dist::ProcessGroup& group, bool background,
                        const std::function<Tensor(const Tensor& rows)>& product) {
  if (chunks.count() == 1) {
    const Tensor own = product(as_matrix(x));
    const Tensor full = own.view(chunks.full_shape(own.size(1)));
    return chunks.of_sequence() ? Pending::reduce_scatter(full, along_sequence, group, {}, background)
                                : Pending::all_reduce(full, group, background);
  }
  const Tensor from = x.contiguous();
  Tensor out;
  std::vector<Pending> parts;
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Tensor own = product(as_matrix(chunks.of_full(from, i)));
    const int64_t width = own.size(1);
    if (!out.defined()) out = empty(chunks.part_shape(width), {.dtype = own.dtype(), .device = own.device()});
    const Tensor place = chunks.of_part(out, i);
    if (!chunks.of_sequence()) parts.push_back(Pending::all_reduce(place, own.view(place.shape()), group));
    else
      parts.push_back(Pending::reduce_scatter(own.view({place.size(0), place.size(1) * group.size(), width}),
                                              along_sequence, group, place));
  }
  return Pending::all(std::move(parts), out);
}

Tensor use_gathered(const Tensor& part, const Chunks& chunks, dist::ProcessGroup& group, bool keeps,
                    const std::function<void(const Tensor& rows, int64_t i)>& use) {
  const Tensor own = part.contiguous();
  const bool joins = keeps && chunks.count() > 1;
  Tensor full;
  if (joins) full = empty(chunks.full_shape(part.size(-1)), {.dtype = part.dtype(), .device = part.device()});
  std::vector<Pending> pending;
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Tensor place = joins && !chunks.apart() ? chunks.of_full(full, i) : Tensor();
    pending.push_back(Pending::all_gather(chunks.of_part(own, i), along_sequence, group, place));
  }
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Tensor rows = pending[size_t(i)].wait();
    if (joins && chunks.apart()) {
      const Tensor place = chunks.of_full(full, i);
      place.copy_(rows.view(place.shape()));
    }
    if (keeps && !joins) full = rows.view(chunks.full_shape(rows.size(-1)));
    use(as_matrix(rows), i);
  }
  return full;
}

}  // namespace lockstep::tensor_parallel
