#pragma once
// Draws a schedule, as a text table and as an SVG picture.
#include <string>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Returns a text table with a row for each step and a column for each rank. A cell lists what the rank sends in that
/// step. With more than 16 ranks, or if the table would be too wide, returns a list with a line for each message.
std::string draw_table(Algorithm algorithm, const CollectiveRequest& request);

/// An SVG picture: small and self-contained. Time runs to the right, ranks downwards. A square is a chunk, filled in
/// proportion to how complete its sum is; an arrow is a transfer. Error for more than 16 ranks.
std::string draw_svg(Algorithm algorithm, const CollectiveRequest& request);

}  // namespace lockstep::dist
