#pragma once
// What all pictures (SVG) and pages of ours are written with.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace lockstep {

/// Numbers as printf() writes them, 599 characters at most.
std::string format(const char* pattern, auto... values) {
  char text[600];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// Text for SVG and HTML.
std::string escaped(std::string_view text);

/// The beginning of a picture that stands alone, on white; more: its style sheet. It ends with "</svg>\n".
std::string svg_opening(double width, double height, const std::string& more = "");
std::string svg_text(double x, double y, const std::string& words, double size, const std::string& color,
                     const char* anchor = "start");

}  // namespace lockstep
