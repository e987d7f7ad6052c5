// ZB-H1 (Qi et al., arXiv:2401.10241): 1F1B with split backwards. Rank s computes weight gradients s micro-batches
// later than input gradients. The last ranks start their backwards first; they send input gradients early, and fill the
// end of the step with the postponed weight gradients.
//
//   rank 0   F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 ...
//   rank 3   .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 ...
//
// Cost for p ranks and m >= p micro-batches, if the weight gradient W takes less time than the forward F and the input
// gradient I: each rank is idle for (p-1)(F+I-W) instead of 1F1B's (p-1)(F+I+W). Every rank keeps p activations, as
// many as the first rank of 1F1B.
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {

static std::vector<StepAction> weights_later(const PipelineRequest& r, int rank) {
  std::vector<StepAction> list;
  int forwards = 0, inputs = 0, weights = 0;
  const int m = r.micro_batches, warm_up = std::min(r.stages - rank - 1, m);
  while (forwards < warm_up) list.push_back({Do::forward, forwards++, 0});
  while (inputs < m) {
    if (forwards < m) list.push_back({Do::forward, forwards++, 0});
    list.push_back({Do::backward_input, inputs++, 0});
    if (inputs > rank) list.push_back({Do::backward_weight, weights++, 0});
  }
  while (weights < m) list.push_back({Do::backward_weight, weights++, 0});
  return list;
}

const ScheduleRules rules::zb_h1{
    .name = "zb-h1",
    .computations = weights_later,
    .bubble =
        [](const PipelineRequest& r, const StageCosts& c) {
          const double least = std::min({c.forward, c.input, c.weight});
          return idle("i/(i+m(F+I+W)), i = (p-1)(F+I)-(min(p,m)-1)·min(F,I,W)",
                      (r.stages - 1) * (c.forward + c.input) - (std::min(r.stages, r.micro_batches) - 1) * least, r, c);
        },
};

}  // namespace lockstep::pipeline
