#pragma once
// The pictures of the report page, as SVG whose colors are those of the page's style (page_style.inc).
#include <cstdio>
#include <string>

#include "report/run.h"

namespace lockstep::report {

/// Numbers as printf() writes them, 599 characters at most.
std::string format(const char* pattern, auto... values) {
  char text[600];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string loss_chart(const Analysis& analysis);
/// A rank's main thread, and below it its collectives. `shown` of the ranks, the first ones.
std::string timeline_chart(const Analysis& analysis, size_t shown);
/// Where the ranks' time goes, a bar each.
std::string split_chart(const Analysis& analysis, size_t shown);
/// A bar for what was measured, a frame for the formula.
std::string memory_chart(const Analysis& analysis);
std::string_view color_of(Part part);  ///< its class

}  // namespace lockstep::report
