#include "tensor/svg.h"

#include "tensor/check.h"

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

std::string svg_opening(double width, double height, const std::string& more) {
  const std::string size = format("width=\"%.0f\" height=\"%.0f\"", width, height);
  return format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" ", width, height) + size +
         " font-family=\"Helvetica,Arial,sans-serif\">\n" + more + "<rect " + size + " fill=\"white\"/>\n";
}

std::string svg_text(double x, double y, const std::string& words, double size, const std::string& color,
                     const char* anchor) {
  return format("<text x=\"%.5g\" y=\"%.5g\" font-size=\"%.4g\" fill=\"%s\" text-anchor=\"%s\">", x, y, size,
                color.c_str(), anchor) +
         escaped(words) + "</text>\n";
}

}  // namespace lockstep
