// Interleaved 1F1B (Narayanan et al., 2021): rank r of p holds v chunks of the model, r, p+r, 2p+r, ... Micro-batches
// run in groups of p. A group passes the first chunk of every rank, then the second, and so on. Backwards visit the
// chunks in reverse.
//
//   p = 2, v = 2 (a: first chunk, b: second):      rank 0   F0a F1a F0b F1b F2a .   B0b B0b F3a B1b ...
//                                                  rank 1   .   F0a F1a F0b B0b B0b F1b B1b B1b F2a ...
//   A column is the time of a forward. A backward takes two. In a column with a point the rank waits.
//
// Cost for m micro-batches: bubble (p-1)/(m·v+p-1); v times the messages of 1F1B; rank r keeps the activations of
// min(2(p-r-1) + (v-1)p + 1, m·v) chunks.
#include "base/check.h"
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {

static std::vector<StepAction> in_groups(const PipelineRequest& r, int rank) {
  const int p = r.stages, v = r.chunks, total = r.micro_batches * v;
  const auto at = [&](Do what, int i) {  // the i-th forward or backward of this rank
    const int in_round = i % (p * v), chunk = in_round / p;
    return StepAction{what, i / (p * v) * p + in_round % p, what == Do::forward ? chunk : v - 1 - chunk};
  };
  std::vector<StepAction> list;
  int forwards = 0, backwards = 0;
  const int warm_up = std::min(2 * (p - rank - 1) + (v - 1) * p, total);
  while (forwards < warm_up) list.push_back(at(Do::forward, forwards++));
  while (forwards < total) {
    list.push_back(at(Do::forward, forwards++));
    list.push_back(at(Do::backward, backwards++));
  }
  while (backwards < total) list.push_back(at(Do::backward, backwards++));
  return list;
}

const ScheduleRules rules::interleaved{
    .name = "interleaved",
    .computations = in_groups,
    .bubble = [](const PipelineRequest& r, const StageCosts&) -> BubbleFormula {
      return {"(p-1)/(m·v+p-1)", double(r.stages - 1) / (r.micro_batches * r.chunks + r.stages - 1)};
    },
    .refusal = [](const PipelineRequest& r) -> std::string {
      if (r.micro_batches % r.stages == 0) return "";
      const int below = r.micro_batches / r.stages * r.stages, above = below + r.stages;
      return str("micro-batches in groups of as many as there are stages (", r.stages, "), got ", r.micro_batches,
                 "; use ", below > 0 ? str(below, " or ", above) : str(above), ", or 1f1b, which takes any number");
    },
    .chunks = 2,
    .any_chunks = true,
};

}  // namespace lockstep::pipeline
