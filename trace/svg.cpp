#include "trace/svg.h"

#include <cstdio>

namespace lockstep::svg {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

std::string escaped(const std::string& words) {
  std::string text;
  for (const char c : words) text += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return text;
}

}  // namespace

std::string begin(double width, double height) {
  char size[64], box[64];
  std::snprintf(size, sizeof size, "width=\"%.0f\" height=\"%.0f\"", width, height);
  std::snprintf(box, sizeof box, "viewBox=\"0 0 %.0f %.0f\"", width, height);
  return std::string("<svg xmlns=\"http://www.w3.org/2000/svg\" ") + box + " " + size +
         " font-family=\"Helvetica,Arial,sans-serif\">\n<rect " + size + " fill=\"white\"/>\n";
}

std::string rect(double x, double y, double width, double height, const std::string& look) {
  return "<rect" + attribute("x", number(x)) + attribute("y", number(y)) + attribute("width", number(width)) +
         attribute("height", number(height)) + look + "/>\n";
}

std::string text(double x, double y, const std::string& words, double size, const std::string& color,
                 const std::string& anchor) {
  return "<text" + attribute("x", number(x)) + attribute("y", number(y)) + attribute("font-size", number(size)) +
         attribute("fill", color) + attribute("text-anchor", anchor) + ">" + escaped(words) + "</text>\n";
}

std::string attribute(const std::string& name, const std::string& value) { return " " + name + "=\"" + value + "\""; }

}  // namespace lockstep::svg
