// GPipe (Huang et al., 2019): all forwards, then all backwards. For p ranks and m micro-batches the bubble is
// (p-1)/(m+p-1), and every rank keeps the activations of m micro-batches.
//
//   rank 0   F0 F1 F2 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2
//   rank 1   .  F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2 .  .
//   rank 2   .  .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .  .  .
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {

static std::vector<StepAction> all_then_all(const PipelineRequest& r, int) {
  std::vector<StepAction> list;
  for (int m = 0; m < r.micro_batches; ++m) list.push_back({Do::forward, m, 0});
  for (int m = 0; m < r.micro_batches; ++m) list.push_back({Do::backward, m, 0});
  return list;
}

const ScheduleRules rules::gpipe{
    .name = "gpipe",
    .computations = all_then_all,
    .bubble = bubble_of_1f1b,
};

}  // namespace lockstep::pipeline
