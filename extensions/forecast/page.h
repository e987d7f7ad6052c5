#pragma once
// The report page: one self-contained HTML file for light and dark screens that works from file://.

#include "extensions/forecast/run.h"

namespace lockstep::report {

/// Returns the HTML. Charts are inline SVG and need no script; a script adds zooming to the timeline.
std::string make_page(const RunFiles& run, const Analysis& analysis);

/// An important number of a run, for the head of the page and for a terminal: "loss", "2.31", " after step 100".
struct Headline {
  std::string name, value, about;
};
/// The most important numbers of a run.
std::vector<Headline> headlines(const Analysis& analysis);

/// The timeline as an SVG file of its own, with its own style. For docs.
std::string timeline_svg(const Analysis& analysis, const std::string& title);

/// The charts of the page (charts.cpp), as SVG in the colors of page_style.inc. A chart without data is "".
/// Curves over steps. The axes are `width` x `height` pixels.
std::string curve_chart(const CurveChart& chart, const std::string& id, double width, double height);
bool has_mean(const Curve& curve);           ///< true: the chart has the running mean of the curve, too
std::string_view curve_color(size_t curve);  ///< the color, a variable of page_style.inc, of a chart's n-th curve
/// The timeline of a step: each rank's main thread, and its collectives below. Shows the first `max_rows` ranks.
std::string timeline_chart(const Analysis& analysis, size_t max_rows);
/// One bar per rank, divided by the kinds of activity (StepPhase).
std::string split_chart(const Analysis& analysis, size_t max_rows);
/// One bar per category for the measured memory, with a frame for the memory that the formula gives.
std::string memory_chart(const Analysis& analysis);
std::string_view color_of(StepPhase part);  ///< the CSS class for a part's color

}  // namespace lockstep::report
