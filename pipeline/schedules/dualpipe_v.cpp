// DualPipe-V (DeepSeek-AI, 2024, cut in half by Qi et al.): each rank holds two chunks of the model, placed as a V, so
// that the first rank holds the first and the last chunk. Backwards of the second chunk start while forwards of the
// first still arrive: ranks work in both directions at once.
//
//   rank 0   chunk 0 ─▶ ... ─▶ chunk 7        rank r: chunks r and 2p-1-r
//   rank 1     chunk 1 ─▶ ... ─▶ chunk 6
//   rank 2       chunk 2 ─▶ ... ─▶ chunk 5
//   rank 3         chunk 3 ─▶ chunk 4
//
// p ranks need m >= 2p micro-batches. The schedule has eight phases. In the code, a and b are the two chunks of a rank,
// F is a forward, B a whole backward, and I and W are its parts, the gradients of the inputs and of the weights.
//
// Cost, with F, B, I and W as times of one chunk: each rank is idle for (p-1)(F+I-W), or, when F and B run as one
// computation of length F&B, for (p-1)(F&B+B-3W). At most 2p+1 chunk activations are kept.
#include "base/check.h"
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {

static std::vector<StepAction> both_directions(const PipelineRequest& r, int rank) {
  const int p = r.stages, later = p - rank - 1;
  std::vector<StepAction> list;
  int forwards[2] = {0, 0}, backwards[2] = {0, 0};
  std::vector<StepAction> postponed;  // weight gradients, first in, first out
  size_t done = 0;
  const auto forward = [&](int chunk) { list.push_back({Do::forward, forwards[chunk]++, chunk}); };
  const auto backward = [&](int chunk, bool split = false) {
    const int m = backwards[chunk]++;
    list.push_back({split ? Do::backward_input : Do::backward, m, chunk});
    if (split) postponed.push_back({Do::backward_weight, m, chunk});
  };
  const auto weight = [&] { list.push_back(postponed.at(done++)); };

  for (int i = 0; i < 2 * later; ++i) forward(0);                           // Fa
  for (int i = 0; i <= rank; ++i) forward(0), forward(1);                   // Fa Fb
  for (int i = 0; i < later; ++i) backward(1, true), weight(), forward(1);  // Ib Wb Fb
  // Fa Bb Fb Ba: forwards and backwards of both chunks in turn
  for (int i = 0; i < r.micro_batches - 2 * p + rank + 1; ++i) forward(0), backward(1), forward(1), backward(0);
  for (int i = 0; i < later; ++i) backward(1), forward(1), backward(0);  // Bb Fb Ba
  const int half = (rank + 1) / 2;
  for (int i = 0; i <= rank; ++i) {  // Bb Ba, the second half Ib Ia
    backward(1, i > half || (i == half && rank % 2 == 1));
    backward(0, i >= half);
  }
  for (int i = 0; i < later; ++i) weight(), backward(0, true);  // W Ia
  while (done < postponed.size()) weight();                     // W
  return list;
}

const ScheduleRules rules::dualpipe_v{
    .name = "dualpipe-v",
    .computations = both_directions,
    .bubble =
        [](const PipelineRequest& r, const StageCosts& c) {
          const double others = r.stages - 1;
          BubbleFormula f = c.paired ? idle("i/(i+m(F+I+W)), i = (p-1)(F&B+B-3W)/2, F&B = F+B, B = I+W",
                                            others * (c.forward + 2 * c.input - c.weight) / 2, r, c)
                                     : idle("i/(i+m(F+I+W)), i = (p-1)(F+I-W)/2",
                                            others * (c.forward + c.input - c.weight) / 2, r, c);
          const double backward = c.input + c.weight;
          if (c.input < c.weight || (c.paired ? c.forward != c.input : c.forward < c.input || c.forward > backward))
            f.text += c.paired ? " (for F = I >= W, which these are not)" : " (for I+W >= F >= I >= W, not these)";
          return f;
        },
    .refusal = [](const PipelineRequest& r) -> std::string {
      if (r.micro_batches >= 2 * r.stages) return "";
      return str("at least two micro-batches a stage (", 2 * r.stages, "), got ", r.micro_batches,
                 "; zb-h1 and 1f1b take any number");
    },
    .chunks = 2,
    .is_v = true,
};

}  // namespace lockstep::pipeline
