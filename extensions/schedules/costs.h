#pragma once
// The costs of collective schedules as textbooks give them.
#include <optional>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Textbook cost for S bytes over links of latency α and bandwidth β: messages·α + volume·S/β.
struct AlphaBetaCost {
  double messages, volume;
  const char* text;
};

/// The textbook cost of a schedule; nothing if there is no short formula.
std::optional<AlphaBetaCost> costs_of(Algorithm algorithm, const CollectiveRequest& request);

}  // namespace lockstep::dist
