#pragma once
// A schedule for the eye: as a table of text, and as a picture (SVG).
#include <string>

#include "dist/schedule.h"

namespace lockstep::dist {

/// A row per step, a column per rank: what the rank sends. Many ranks: a line per message.
std::string draw_table(Algorithm algorithm, const Request& request);

/// Time goes right, ranks go down. A square is a chunk, filled as far as its sum is complete; an arrow is a transfer.
/// Self-contained, light. Error for more ranks than can be told apart (16).
std::string draw_svg(Algorithm algorithm, const Request& request);

}  // namespace lockstep::dist
