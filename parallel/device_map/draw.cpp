#include "parallel/device_map/draw.h"

#include <algorithm>

#include "tensor/check.h"
#include "tensor/svg.h"

namespace lockstep::device_map {

std::string draw_svg(const Placement& plan) {
  std::vector<std::string> columns;  // devices, host memory, disk
  for (const auto& [place, bytes] : plan.held) columns.push_back(place);
  if (const std::string main = Location(plan.main).name; !plan.held.count(main)) columns.push_back(main);
  const auto order = [](const std::string& name) {
    return std::pair(name == "disk"  ? 2
                     : name == "cpu" ? 1
                                     : 0,
                     Location(name).is_device() ? int(Location(name).device().index) : 0);
  };
  std::sort(columns.begin(), columns.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  LOCKSTEP_CHECK(columns.size() <= 16, "[draw] expected 16 places or fewer, got ", columns.size(),
                 "; text() prints any number");
  int64_t most = 1;
  for (const std::string& place : columns)
    most = std::max(most, (plan.held.count(place) ? plan.held.at(place) : 0) +
                              (Location(plan.main).name == place ? plan.reserved : 0));
  constexpr double left = 16, top = 44, column = 170, gap = 18, tall = 300;
  const double page = left + double(columns.size()) * (column + gap), height = top + tall + 34;
  std::string out = svg_opening(page, height);
  const auto text = [&](double x, double y, const std::string& words, double size, const char* color) {
    out += svg_text(x, y, words, size, color, "middle");
  };
  const auto box = [&](double x, double y, double h, const char* fill, const char* more, const std::string& words) {
    out += format(
        "<rect x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.5g\" rx=\"2\" fill=\"%s\" stroke=\"#37474f\" "
        "stroke-width=\"0.8\"%s/>\n",
        x, y, column, std::max(h, 0.5), fill, more);
    if (h >= 11) text(x + column / 2, y + h / 2 + 4, words, 11, "#102027");
  };
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string& place = columns[i];
    const double x = left + double(i) * (column + gap);
    const int64_t bytes = plan.held.count(place) ? plan.held.at(place) : 0;
    text(x + column / 2, 20, place == "cpu" ? "cpu: host memory" : place, 13, "#102027");
    text(x + column / 2, 36, str(bytes, " bytes"), 11, "#546e7a");
    double bottom = top + tall;
    for (size_t k = 0; k < plan.parts.size(); ++k) {
      const Part& part = plan.parts[k];
      if (plan.places[k].name != place) continue;
      const double h = tall * double(part.bytes) / double(most);
      bottom -= h;
      box(x, bottom, h,
          place == "cpu"    ? "#ffe0b2"
          : place == "disk" ? "#cfd8dc"
                            : "#bbdefb",
          "", (part.name.empty() ? "the model" : part.name) + (part.own ? "'s own" : ""));
    }
    if (place == Location(plan.main).name && plan.reserved > 0) {
      const double h = tall * double(plan.reserved) / double(most);
      box(x, bottom - h, h, "none", " stroke-dasharray=\"4 3\"", "kept free: " + std::to_string(plan.reserved));
    }
  }
  text(page / 2, height - 12, "parts of host memory and disk come to " + Location(plan.main).name + " while they run",
       11, "#546e7a");
  return out + "</svg>\n";
}

}  // namespace lockstep::device_map
