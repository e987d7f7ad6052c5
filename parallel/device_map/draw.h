#pragma once
// The picture of a plan: a column a place, a box a part, as high as its bytes.
#include <string>

#include "parallel/device_map/plan.h"

namespace lockstep::device_map {

/// Error for more than 16 places.
std::string draw_svg(const Placement& plan);

}  // namespace lockstep::device_map
