#pragma once
// Exchanges only candidates when the vocabulary is sharded: each rank sends its top k logits instead of all.
//
//   vocab 128,256, 2 ranks, greedy       2 x 1 pairs of 16 bytes instead of 2 x 256,512 bytes
#include "dist/process_group.h"
#include "extensions/generation/generate.h"

namespace lockstep::inference {

/// While this object lives, `head` returns the top k logits over all ranks; all other entries are -infinity. Each rank
/// sends its own k best instead of all its logits. `head` returns all logits if the k-th score is tied, if a score is
/// not finite, if the k best of all ranks are as many bytes as the logits, or if `generation` needs more than the k
/// highest: for penalties, bias, beams, log probabilities, and draws from all tokens.
class CandidateScope {
 public:
  CandidateScope(nn::Head& head, int64_t vocab, const nn::Generation& generation, dist::ProcessGroup& group);
  ~CandidateScope();
  CandidateScope(const CandidateScope&) = delete;

 private:
  nn::Head& head_;
  std::function<Variable(const Variable&)> full_;
};

}  // namespace lockstep::inference
