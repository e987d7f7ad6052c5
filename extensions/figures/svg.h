#pragma once
// Writes SVG pictures: svg::begin(), elements, svg::end. Lengths are pixels, printed with five significant digits.
#include <string>
#include <string_view>

#include "base/classic_text.h"

namespace lockstep {

/// Text with the special characters of XML and HTML escaped.
std::string escaped(std::string_view text);

namespace svg {

/// Opens a picture with a white background; style: "" or a style sheet, "<style>...</style>".
std::string begin(double width, double height, const std::string& style = "");
/// A rectangle. `look`: further attributes, such as fill="...", see attribute().
std::string rect(double x, double y, double width, double height, const std::string& look);
/// A line of text at (x, y), escaped; anchor: start, middle or end.
std::string text(double x, double y, const std::string& words, double size, const std::string& color,
                 const std::string& anchor = "start");
/// Closes a picture.
constexpr const char* end = "</svg>\n";

/// The attribute name="value", with a leading space.
std::string attribute(const std::string& name, const std::string& value);
/// Colours of text and of secondary text.
constexpr const char *ink = "#24292f", *soft = "#57606a";

}  // namespace svg
}  // namespace lockstep
