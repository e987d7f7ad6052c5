#pragma once
// A vocabulary cut over ranks, when only the likeliest tokens matter: each rank sends its top k, not its logits.
//
//   vocab 128,256, 2 ranks, greedy       2 x 1 pairs of 16 bytes instead of 2 x 256,512 bytes
#include "dist/process_group.h"
#include "nn/generate.h"

namespace lockstep::inference {

/// Whether a draw looks at the k likeliest tokens alone, as they come from the model.
bool only_the_likeliest(const nn::Generation& generation);

/// While it lives `head` gives, in place of whole logits, the top k of all ranks; everything else is -infinity. Where
/// equal scores stand at the border, and where one is not a number, whole logits.
class CandidateScope {
 public:
  CandidateScope(nn::Head& head, int64_t vocab, const nn::Generation& generation, dist::ProcessGroup& group);
  ~CandidateScope();
  CandidateScope(const CandidateScope&) = delete;

 private:
  nn::Head& head_;
  std::function<Variable(const Variable&)> whole_;
};

}  // namespace lockstep::inference
