#pragma once
// The report page: one HTML file without anything from elsewhere, for light and dark screens, that works from file://.
#include <string>

#include "report/run.h"

namespace lockstep::report {

/// Pictures are SVG and stand without scripts; a script adds zooming into the timeline.
std::string make_page(const RunFiles& run, const Analysis& analysis);

/// What there is to say of a run in a few words, for the head of the page and for a terminal: "loss", "2.31", " after
/// step 100".
struct Headline {
  std::string name, value, about;
};
std::vector<Headline> headlines(const Analysis& analysis);

/// For docs: the timeline alone, as a file that shows without the page's style.
std::string timeline_svg(const Analysis& analysis, const std::string& title);

// Its pictures (charts.cpp), in the colors of its style (page_style.inc).
std::string loss_chart(const Analysis& analysis);
/// A rank's main thread, and below it its collectives. `shown` of the ranks, the first ones.
std::string timeline_chart(const Analysis& analysis, size_t shown);
/// Where the ranks' time goes, a bar each.
std::string split_chart(const Analysis& analysis, size_t shown);
/// A bar for what was measured, a frame for the formula.
std::string memory_chart(const Analysis& analysis);
std::string_view color_of(Part part);  ///< its class

}  // namespace lockstep::report
