#pragma once
// What the file of a kind of schedule says: how it is called, what it does, what it asks for, and what its paper says
// of it, which the tests hold the lists against.
#include <algorithm>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

struct Rules {
  std::string_view name;  ///< in configurations and on command lines
  /// The computations of one rank in order; make_schedule() adds the transfers.
  std::vector<Action> (*computations)(const Request& request, int rank);
  /// The idle part of all ranks' time.
  Formula (*bubble)(const Request& request, const Costs& costs);
  /// What is wrong with these numbers of stages, micro-batches and chunks: "expected ..., got ...; use ..."; or
  /// nothing.
  std::string (*refusal)(const Request& request) = nullptr;
  int chunks = 1;           ///< of a rank, when nothing else is asked
  bool any_chunks = false;  ///< whether something else may be asked
  bool is_v = false;        ///< the second chunks lie in the opposite order, so that the first rank holds both ends
};

/// Of 1F1B, and of all that is idle for as long.
inline Formula bubble_of_1f1b(const Request& r, const Costs&) {
  return {"(p-1)/(m+p-1)", double(r.stages - 1) / (r.micro_batches + r.stages - 1)};
}
/// Idle for a time `one` beside the work of all micro-batches.
inline Formula idle(const char* text, double one, const Request& r, const Costs& c) {
  const double all = one + r.micro_batches * (c.forward + c.input + c.weight);
  return {text, all > 0 ? one / all : 0};
}

#define KIND(x) extern const Rules x;
namespace rules {
#include "pipeline/schedules/kinds.def"
}
#undef KIND

}  // namespace lockstep::pipeline
