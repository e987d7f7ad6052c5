#pragma once
// The report page: one HTML file without anything from elsewhere, for light and dark screens, that works from file://.
#include <string>

#include "report/run.h"

namespace lockstep::report {

/// Pictures are SVG and stand without scripts; a script adds zooming into the timeline.
std::string make_page(const RunFiles& run, const Analysis& analysis);

/// Text for HTML and SVG.
std::string escaped(std::string_view text);
std::string seconds_text(double seconds);
std::string bytes_text(double bytes);

/// For docs: the timeline alone, as a file that shows without the page's style.
std::string timeline_svg(const Analysis& analysis, const std::string& title);

}  // namespace lockstep::report
