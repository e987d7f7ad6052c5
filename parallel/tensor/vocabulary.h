#pragma once
// A vocabulary cut over the ranks: each has some rows of the table, looks up and scores only those. Any size will do:
// dist::shard_range() cuts it, so nothing is padded that a softmax could choose; a rank may even have none.
//
//   tokens 0 1 2 3 4, 2 ranks:   rank 0 has 0 1 2, rank 1 has 3 4
//   embedding       rows that are elsewhere give zeros, and an all-reduce adds up            B·T·C elements
//   cross entropy   every rank: log Σ exp of its logits, and the target's logit if it has it;
//                   an all-gather of these two per token; no logits are sent                 2·B·T elements of each
#include "autograd/ops.h"
#include "parallel/tensor/functions.h"

namespace lockstep::tensor_parallel {

/// Rows of a table of `vocab` rows, of which `w` has this rank's. Error for an index outside the whole.
Variable vocab_parallel_embedding(const Variable& w, const Tensor& index, int64_t vocab, dist::ProcessGroup& group);

struct VocabCrossEntropyOptions {
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;  ///< of the targets not ignored
};
/// cross_entropy() of logits (N, ..., this rank's of `vocab`) with targets i64 (N, ...), the same on all ranks.
Variable vocab_parallel_cross_entropy(const Variable& logits, const Tensor& target, int64_t vocab,
                                      dist::ProcessGroup& group, const VocabCrossEntropyOptions& options = {});

}  // namespace lockstep::tensor_parallel
