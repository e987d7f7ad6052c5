#pragma once
// Draws a pipeline schedule, as a text grid and as an SVG picture.
#include <string>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

/// A row per rank, a column per unit of time (forward, input and weight take one each). F3 is the forward of
/// micro-batch 3, B3 its backward, I3 and W3 the halves of a split backward; a, b, ... name the chunk; "." is idle.
std::string draw_grid(const PipelineSchedule& schedule);

/// A picture of the simulated step. Time goes right, ranks go down; each box is a computation with its micro-batch.
/// Error for more than 32 ranks: rows would be too thin.
std::string draw_svg(const PipelineSchedule& schedule, const StageCosts& costs = {});

}  // namespace lockstep::pipeline
