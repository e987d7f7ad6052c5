// Interleaved 1F1B (Narayanan et al., 2021): rank r holds the chunks r, p+r, 2p+r, ... of the model. Micro-batches go in groups
// of p: a group passes the first chunk of every rank, then the second, ..., and comes back the other way round.
//
//   p = 2, v = 2 (a: first chunk, b: second):      rank 0   F0a F1a F0b F1b F2a .   B0b B0b F3a B1b ...
//                                                  rank 1   .   F0a F1a F0b B0b B0b F1b B1b B1b F2a ...
//
// Cost: bubble (p-1)/(m·v+p-1); v messages where 1F1B has one; activations of min(2(p-r-1) + (v-1)p + 1, m·v) chunks kept.
#include <algorithm>

#include "pipeline/schedule.h"

namespace lockstep::pipeline {

std::vector<Action> interleaved(const Request& r, int rank) {
  const int p = r.stages, v = r.chunks, total = r.micro_batches * v;
  const auto at = [&](What what, int i) {  // the i-th forward or backward of this rank
    const int in_round = i % (p * v), chunk = in_round / p;
    return Action{what, i / (p * v) * p + in_round % p, what == What::forward ? chunk : v - 1 - chunk};
  };
  std::vector<Action> list;
  int forwards = 0, backwards = 0;
  const int warm_up = std::min(2 * (p - rank - 1) + (v - 1) * p, total);
  while (forwards < warm_up) list.push_back(at(What::forward, forwards++));
  while (forwards < total) {
    list.push_back(at(What::forward, forwards++));
    list.push_back(at(What::backward, backwards++));
  }
  while (backwards < total) list.push_back(at(What::backward, backwards++));
  return list;
}

}  // namespace lockstep::pipeline
