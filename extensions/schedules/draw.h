#pragma once
// Draws schedules, as text and as SVG pictures, which are small and self-contained.
#include <string>

#include "dist/schedule.h"
#include "pipeline/simulate.h"

namespace lockstep::dist {

/// Returns a text table with a row for each step and a column for each rank. A cell lists what the rank sends in that
/// step. With more than 16 ranks, or if the table would be too wide, returns a list with a line for each message.
std::string draw_table(Algorithm algorithm, const CollectiveRequest& request);
/// A picture of a collective. Time runs to the right, ranks downwards. A square is a chunk, filled in proportion to how
/// complete its sum is; an arrow is a transfer. Error for more than 16 ranks.
std::string draw_svg(Algorithm algorithm, const CollectiveRequest& request);

}  // namespace lockstep::dist

namespace lockstep::pipeline {

/// A row per rank, a column per unit of time (forward, input and weight take one each). F3 is the forward of
/// micro-batch 3, B3 its backward, I3 and W3 the halves of a split backward; a, b, ... name the chunk; "." is idle.
std::string draw_grid(const PipelineSchedule& schedule);
/// A picture of the simulated step. Time goes right, ranks go down; each box is a computation with its micro-batch.
/// Error for more than 32 ranks: rows would be too thin.
std::string draw_svg(const PipelineSchedule& schedule, const StageCosts& costs = {});

}  // namespace lockstep::pipeline

namespace lockstep::sequence {

/// A picture of the steps of causal ring attention in both orders: a row per rank, a box per block of scores, grey
/// where a rank waits for the slowest. Error for more than 16 ranks.
std::string draw_svg(int ranks);

}  // namespace lockstep::sequence
