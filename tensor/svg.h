#pragma once
// What pictures (SVG) and pages of ours are written with: svg::begin(), what is on it, svg::end. Lengths are pixels,
// written with five digits.
#include <string>
#include <string_view>

#include "tensor/classic_text.h"

namespace lockstep {

/// Text for SVG and HTML.
std::string escaped(std::string_view text);

namespace svg {

/// A white page; style: a style sheet.
std::string begin(double width, double height, const std::string& style = "");
/// `look`: further attributes, fill="..." and so on.
std::string rect(double x, double y, double width, double height, const std::string& look);
std::string text(double x, double y, const std::string& words, double size, const std::string& color,
                 const std::string& anchor = "start");
constexpr const char* end = "</svg>\n";

/// name="value", with a space in front: what rect() takes as look.
std::string attribute(const std::string& name, const std::string& value);
constexpr const char *ink = "#24292f", *soft = "#57606a";

}  // namespace svg
}  // namespace lockstep
