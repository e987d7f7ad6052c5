#pragma once
// The pieces of a picture as SVG, for those who draw schedules, plans and routes: begin(), what is on it, end. Lengths
// are pixels, written with five digits.
#include <string>

namespace lockstep::svg {

/// A white page.
std::string begin(double width, double height);
/// `look`: further attributes, fill="..." and so on.
std::string rect(double x, double y, double width, double height, const std::string& look);
std::string text(double x, double y, const std::string& words, double size, const std::string& color,
                 const std::string& anchor = "start");
constexpr const char* end = "</svg>\n";

/// name="value", with a space in front: what rect() takes as look.
std::string attribute(const std::string& name, const std::string& value);
constexpr const char *ink = "#24292f", *soft = "#57606a";

}  // namespace lockstep::svg
