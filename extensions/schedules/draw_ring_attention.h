#pragma once
// Draws the steps of ring attention as an SVG picture.
#include <string>

namespace lockstep::sequence {

/// A picture (SVG) of the steps of causal ring attention in both orders: a row per rank, a box per block of scores,
/// grey where a rank waits for the slowest. Error for more than 16 ranks.
std::string draw_svg(int ranks);

}  // namespace lockstep::sequence
