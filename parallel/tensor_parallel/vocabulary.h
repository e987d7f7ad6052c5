#pragma once
// A vocabulary sharded over the ranks: each rank holds some rows of the table, and looks up and scores only its rows.
// Any size works. dist::shard_range() divides the rows without padding rows, which a softmax could choose. A rank may
// have no rows.
//
//   tokens 0 1 2 3 4 on 2 ranks:  rank 0 has 0 1 2, rank 1 has 3 4
//
//                                                                                              moved, per rank
//   embedding       rows on other ranks give zeros; an all-reduce adds up                      B·T·C elements
//   cross entropy   each rank: log Σ exp of its logits, and the target's logit if it is here;
//                   an all-gather of these two numbers per token; logits are never sent        2·B·T elements
#include "autograd/ops.h"
#include "parallel/tensor_parallel/functions.h"

namespace lockstep::tensor_parallel {

/// Looks up the rows `index` of a table of `vocab` rows; `w` holds this rank's rows of the table. Error for an index
/// outside [0, vocab) (checked on the CPU). Collective.
Variable vocab_parallel_embedding(const Variable& w, const Tensor& index, int64_t vocab, dist::ProcessGroup& group);

/// Options of vocab_parallel_cross_entropy().
struct VocabCrossEntropyOptions {
  int64_t ignore_index = -100;            ///< targets of this value do not count
  Reduction reduction = Reduction::mean;  ///< mean: over the targets that are not ignored
};
/// cross_entropy() of logits (N, ..., this rank's share of `vocab`) and targets i64 (N, ...), which are the same on all
/// ranks. Returns the same loss on all ranks. Collective.
Variable vocab_parallel_cross_entropy(const Variable& logits, const Tensor& target, int64_t vocab,
                                      dist::ProcessGroup& group, const VocabCrossEntropyOptions& options = {});

}  // namespace lockstep::tensor_parallel
