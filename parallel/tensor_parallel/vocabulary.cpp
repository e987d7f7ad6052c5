// Embedding and cross entropy over a vocabulary that is divided among the ranks. See vocabulary.h.
#include "parallel/tensor_parallel/vocabulary.h"

#include <cmath>

#include "autograd/tape.h"
#include "dist/shard.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {
namespace {

constexpr int64_t ignored_here = -100;  // -1 marks targets on other ranks, see CrossEntropyArgs

Tensor scalar(Scalar value, const Tensor& like) { return full({}, value, {like.dtype(), like.device()}); }
Tensor outside(const Tensor& index, const dist::Range& range) {
  return logical_or(lt(index, scalar(range.begin, index)), ge(index, scalar(range.end, index)));
}

void check_index(const char* op, const Tensor& index, const Tensor& wrong, int64_t vocab) {
  LOCKSTEP_CHECK(!index.device().is_cpu() || !any(wrong).item<bool>(), "[", op, "] expected ids in [0, ", vocab,
                 "), got an id outside; check that the tokenizer has ", vocab, " ids");
}

dist::Range own_range(const char* op, int64_t vocab, int64_t here, const dist::ProcessGroup& group) {
  const dist::Range mine = dist::shard_range(vocab, group.size(), group.rank());
  LOCKSTEP_CHECK(mine.size() == here, "[", op, "] expected the ", mine.size(), " of ", vocab, " ids that rank ",
                 group.rank(), " of ", group.size(), " has, got a slice of ", here,
                 "; cut the table by dist::shard_range()");
  return mine;
}

}  // namespace

Variable vocab_parallel_embedding(const Variable& w, const Tensor& index, int64_t vocab, dist::ProcessGroup& group) {
  const char* const op = "vocab_parallel_embedding";
  LOCKSTEP_CHECK(w.dim() == 2 && index.dtype() == i64, "[", op,
                 "] expected a table (ids, dim) and ids of dtype i64, got ", w.shape(), " and ", index.dtype());
  const dist::Range mine = own_range(op, vocab, w.size(0), group);
  if (group.size() == 1) return embedding(w, index);
  check_index(op, index, outside(index, {0, vocab}), vocab);
  Shape shape = index.shape();
  shape.push_back(w.size(1));
  Variable rows;
  if (mine.size() == 0) {  // keeps w in the graph, so that it gets a gradient as on other ranks
    rows = add(sum(w), zeros(shape, {w.dtype(), w.device()}));
  } else {
    const Tensor elsewhere = outside(index, mine);
    const Tensor local = masked_fill(sub_scalar(index, mine.begin), elsewhere, 0);
    rows = masked_fill(embedding(w, local), elsewhere.unsqueeze(-1), 0);
  }
  return reduce_from(rows, group);
}

Variable vocab_parallel_cross_entropy(const Variable& logits, const Tensor& target, int64_t vocab,
                                      dist::ProcessGroup& group, const VocabCrossEntropyOptions& options) {
  const char* const op = "vocab_parallel_cross_entropy";
  LOCKSTEP_CHECK(logits.dim() >= 1 && is_floating(logits.dtype()), "[", op,
                 "] expected floating logits (N, ..., C), got ", logits.dtype(), " ", logits.shape());
  const Shape places(logits.shape().begin(), logits.shape().end() - 1);
  LOCKSTEP_CHECK(target.dtype() == i64 && target.shape() == places, "[", op, "] expected targets i64 ", places,
                 " for logits ", logits.shape(), ", got ", target.dtype(), " ", target.shape());
  const int64_t here = logits.size(-1), count = numel_of(places);
  const dist::Range mine = own_range(op, vocab, here, group);
  const Variable rows = logits.reshape({count, here});
  const Tensor index = target.reshape({count});
  if (group.size() == 1) {
    const Variable loss =
        cross_entropy(rows, index, {.ignore_index = options.ignore_index, .reduction = options.reduction});
    return options.reduction == Reduction::none ? loss.view(places) : loss;
  }
  const Tensor ignored = eq(index, scalar(options.ignore_index, index)), elsewhere = outside(index, mine);
  check_index(op, index, logical_and(outside(index, {0, vocab}), logical_not(ignored)), vocab);
  const Tensor shifted = sub_scalar(index, mine.begin);
  const Tensor local = masked_fill(masked_fill(shifted, elsewhere, -1), ignored, double(ignored_here));
  const CrossEntropyArgs args{.ignore_index = ignored_here, .elsewhere = true};

  const DType dtype = logits.dtype() == f64 ? f64 : f32;
  const TensorOptions like{dtype, logits.device()};
  // For each token: log Σ exp of this rank's logits, and the target's logit if this rank has it.
  const Tensor both = zeros({2, count}, like), all = empty({group.size(), 2, count}, like);
  if (here == 0) {
    both.select(0, 0).fill_(-INFINITY);
  } else {
    both.select(0, 0).copy_(cross_entropy_rows(rows.tensor(), full_like(local, double(ignored_here))).lse);
    const Tensor picked =
        gather(rows.tensor(), 1, masked_fill(shifted, elsewhere, 0).unsqueeze(1)).squeeze(1).to(dtype);
    both.select(0, 1).copy_(masked_fill(picked, elsewhere, 0));
  }
  group.all_gather(all, both, {.tag = "cross entropy"});
  const Tensor lse = logsumexp(all.select(1, 0), {0});
  const Tensor losses = masked_fill(sub(lse, sum(all.select(1, 1), {0})), ignored, 0);
  Tensor out = options.reduction == Reduction::none ? losses.view(places) : sum(losses), divisor;
  if (options.reduction == Reduction::mean) {
    divisor = rsub_scalar(sum(ignored.to(i64)), count).to(dtype);
    out = div(out, divisor);
  }
  if (!needs_grad({&rows})) return out;
  const bool is_none = options.reduction == Reduction::none;
  return record(op, {&rows}, std::move(out),
                [op, logits = Saved(rows), local, lse, divisor, args, count, is_none](Backward& back) mutable {
                  Tensor grad = divisor.defined() ? div(back.grad(), divisor) : back.grad();
                  grad = is_none ? grad.reshape({count}) : grad.expand({count});
                  const Tensor x = back.retains() ? logits.get(op) : logits.take(op);
                  if (x.numel() == 0) return back.give(0, zeros_like(x));
                  // As in cross_entropy(): the gradient reuses the logits' memory if nobody else holds it.
                  back.give(0, cross_entropy_rows_grad(grad, x, lse, local, {}, args,
                                                       !back.retains() && x.is_exclusive() && x.is_contiguous()));
                });
}

}  // namespace lockstep::tensor_parallel
