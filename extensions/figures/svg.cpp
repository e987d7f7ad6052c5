// Writes SVG elements. See svg.h.
#include "extensions/figures/svg.h"

#include "base/check.h"

namespace lockstep {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (uint8_t(c) < 0x20 && c != '\n' && c != '\t') out += "\xef\xbf\xbd";
    else out += c;
  }
  return out;
}

namespace svg {

std::string begin(double width, double height, const std::string& style) {
  const std::string size = format("width=\"%.0f\" height=\"%.0f\"", width, height);
  return format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" ", width, height) + size +
         " font-family=\"Helvetica,Arial,sans-serif\">\n" + style + "<rect " + size + " fill=\"white\"/>\n";
}

std::string rect(double x, double y, double width, double height, const std::string& look) {
  return format("<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.5g\"", x, y, width, height) + look + "/>\n";
}

std::string text(double x, double y, const std::string& words, double size, const std::string& color,
                 const std::string& anchor) {
  return format("<text x=\"%.5g\" y=\"%.5g\" font-size=\"%.4g\" fill=\"%s\" text-anchor=\"%s\">", x, y, size,
                color.c_str(), anchor.c_str()) +
         escaped(words) + "</text>\n";
}

std::string attribute(const std::string& name, const std::string& value) { return " " + name + "=\"" + value + "\""; }

}  // namespace svg
}  // namespace lockstep
