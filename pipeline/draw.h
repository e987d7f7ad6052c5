#pragma once
// A pipeline schedule for the eye: as a grid of text, and as a picture (SVG).
#include <string>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

/// A row per rank, a column per unit of time (forward, input and weight take one each): F3 forward, B3 backward, I3 and
/// W3 its parts of micro-batch 3; a, b, ... its chunk; "." is idle.
std::string draw_grid(const Schedule& schedule);

/// Time goes right, ranks go down; a box is a computation with its micro-batch. Error for more than can be told apart
/// (32 ranks).
std::string draw_svg(const Schedule& schedule, const Costs& costs = {});

}  // namespace lockstep::pipeline
