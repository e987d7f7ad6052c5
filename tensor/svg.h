#pragma once
// Pictures (SVG): how all of ours begin, and how words stand in them.
#include <cstdio>
#include <string>

namespace lockstep::svg {

/// As std::snprintf(), of 400 bytes at most.
inline std::string format(const char* pattern, auto... values) {
  char text[400];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// An empty white picture, which "</svg>\n" ends. `style` stands before all else.
inline std::string open(double width, double height, const std::string& style = "") {
  return format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
             "font-family=\"Helvetica,Arial,sans-serif\">\n",
             width, height, width, height) +
         style + format("<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n", width, height);
}

inline std::string text(double x, double y, const std::string& words, double size, const char* color,
                        const char* anchor = "start") {
  return format("<text x=\"%.5g\" y=\"%.5g\" font-size=\"%.4g\" fill=\"%s\" text-anchor=\"%s\">", x, y, size, color,
                anchor) +
         words + "</text>\n";
}

}  // namespace lockstep::svg
