// 1F1B (PipeDream-flush; Narayanan et al., 2019): rank s of p starts with p-s-1 forwards, then alternates one forward
// and one backward, and ends with the remaining backwards. Picture in schedule.h.
//
// Cost for m micro-batches: bubble (p-1)/(m+p-1); min(p-s, m) activations kept at rank s.
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {

static std::vector<StepAction> alternating(const PipelineRequest& r, int rank) {
  std::vector<StepAction> list;
  int forwards = 0, backwards = 0;
  const int warm_up = std::min(r.stages - rank - 1, r.micro_batches);
  while (forwards < warm_up) list.push_back({Do::forward, forwards++, 0});
  while (forwards < r.micro_batches) {
    list.push_back({Do::forward, forwards++, 0});
    list.push_back({Do::backward, backwards++, 0});
  }
  while (backwards < r.micro_batches) list.push_back({Do::backward, backwards++, 0});
  return list;
}

const ScheduleRules rules::one_f_one_b{
    .name = "1f1b",
    .computations = alternating,
    .bubble = bubble_of_1f1b,
};

}  // namespace lockstep::pipeline
