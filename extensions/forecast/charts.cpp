// Draws the charts of the report page. See page.h.
#include "extensions/forecast/page.h"

#include <cmath>
#include <numeric>

#include "base/check.h"
#include "extensions/figures/quantity.h"
#include "extensions/figures/svg.h"

namespace lockstep::report {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr size_t max_points = 2000, least_points = 100;  // points drawn of all curves in a chart, and of each curve
constexpr size_t max_dots = 200;                         // a curve of more points is a line without dots
constexpr size_t least_for_mean = 40;                    // a curve of more points has a running mean
constexpr int max_ticks = 12;

std::string text(double x, double y, const std::string& words, const char* anchor = "start", const char* look = "",
                 const std::string& more = "") {
  return str("<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\" class=\"", look, "\"", more, ">",
             escaped(words), "</text>\n");
}

/// A rectangle of CSS class `look`, with `title` as its tooltip.
std::string rect(std::string_view look, double x, double y, double width, double height, const std::string& title,
                 const std::string& more = "") {
  return str("<rect class=\"", look, "\" x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height, "\"",
             more, "><title>", escaped(title), "</title></rect>\n");
}

std::string dot(std::string_view color, double x, double y, double radius, const std::string& title) {
  return str("<circle style=\"fill:var(--", color, ")\" cx=\"", x, "\" cy=\"", y, "\" r=\"", radius, "\"><title>",
             escaped(title), "</title></circle>\n");
}

std::string grid_line(double x1, double x2, double y1, double y2) {
  return str("<line class=\"grid\" x1=\"", x1, "\" x2=\"", x2, "\" y1=\"", y1, "\" y2=\"", y2, "\"/>");
}

std::string open(const char* id, double width, double height, const std::string& label, const std::string& more = "") {
  return format("<svg id=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", id, width, height) +
         escaped(label) + "\"" + more + ">\n";
}

/// About five axis ticks, at multiples of 1, 2 or 5 times a power of ten, and at least `least` apart.
std::vector<double> ticks(double low, double high, double least = 0) {
  const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw))), rest = raw / power;
  const int times = rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10;
  const double step = std::max(least, times * power);
  std::vector<double> all;
  for (int i = 0; i < max_ticks && (std::ceil(low / step) + i) * step <= high; ++i)
    all.push_back((std::ceil(low / step) + i) * step);
  return all;
}

/// Means over a fortieth of the points to either side, and over fewer at the ends.
Points running_mean(Points points) {
  std::vector<double> sums{0};
  for (const auto& [step, value] : points) sums.push_back(sums.back() + value);
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach = std::min({i, points.size() - 1 - i, points.size() / 40});
    points[i].second = (sums[i + reach + 1] - sums[i - reach]) / double(2 * reach + 1);
  }
  return points;
}

}  // namespace

std::string_view color_of(StepPhase part) { return part == StepPhase::weights ? "weights" : name_of(part); }

std::string_view curve_color(size_t curve) {
  constexpr std::string_view colors[] = {"accent",    "communication", "backward", "weights",
                                         "optimizer", "data",          "forward",  "other"};
  return colors[curve % std::size(colors)];
}

bool has_mean(const Curve& curve) {
  return (curve.name == "loss" || curve.name == "grad_norm") && curve.points.size() > least_for_mean;
}

std::string curve_chart(const CurveChart& chart, const std::string& id, double width, double height) {
  constexpr double left = 56, top = 14;
  double low = INFINITY, high = -INFINITY, first = INFINITY, last = -INFINITY;
  for (const Curve& curve : chart.curves) {
    for (const auto& [step, value] : curve.points) {
      low = std::min(low, value), high = std::max(high, value);
      first = std::min(first, step), last = std::max(last, step);
    }
  }
  if (!(last >= first)) return "";
  if (!(high > low)) high = low + std::max(1e-6, std::abs(low) * 0.1), low -= high - low;
  const double pad = (high - low) * 0.06, y_low = low - pad, y_high = high + pad, x_range = std::max(last - first, 1.);
  const auto x = [&](double step) { return left + (step - first) / x_range * width; };
  const auto y = [&](double value) { return top + (y_high - value) / (y_high - y_low) * height; };
  std::string out = open(id.c_str(), left + width + 24, top + height + 40, chart.title + " over steps");
  for (const double v : ticks(y_low, y_high))
    out += grid_line(left, left + width, y(v), y(v)) + text(left - 8, y(v) + 4, format("%.4g", v), "end");
  for (const double v : ticks(first, first + x_range, 1))
    if (v <= last) out += text(x(v), top + height + 18, format("%.6g", v), "middle");
  out += text(left + width / 2, top + height + 36, "step", "middle");
  const size_t limit = std::max(max_points / chart.curves.size(), least_points);
  const auto line = [&](const Points& points, const char* look, std::string_view color) {
    std::string path;
    const size_t every = points.size() / limit + 1;
    for (size_t i = 0; i < points.size(); i += every)
      path += format("%s%.5g %.5g", path.empty() ? "M" : "L", x(points[i].first), y(points[i].second));
    out += str("<path class=\"", look, "\" style=\"stroke:var(--", color, ")\" d=\"", path, "\"/>\n");
  };
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const Curve& curve = chart.curves[i];
    const Points& points = curve.points;
    const std::string_view color = curve_color(i);
    line(points, has_mean(curve) ? "curve faint" : "curve", color);
    if (has_mean(curve)) line(running_mean(points), "curve", color);
    if (points.size() > 1 && (!curve.evaluated || points.size() > max_dots)) continue;
    for (const auto& [at, value] : points)
      out += dot(color, x(at), y(value), 3.5, format("%s %.5g after step %g", curve.name.c_str(), value, at));
  }
  return out + "</svg>\n";
}

std::string timeline_chart(const Analysis& a, size_t max_rows) {
  constexpr double left = 64, top = 26, width = 1000, row = 20, thin = 8, gap = 8;
  double begin = INFINITY, end = -INFINITY;
  for (const auto& [rank, step] : a.timeline) begin = std::min(begin, step.begin), end = std::max(end, step.end);
  if (!(end > begin)) return "";
  const double total = end - begin, scale = width / total;
  const double height = top + double(std::min(max_rows, a.timeline.size())) * (row + thin + gap) + 4;
  std::string out = open("timeline", left + width + 12, height, "timeline of a step",
                         format(" data-left=\"%g\" data-width=\"%g\" data-seconds=\"%.9g\"", left, width, total));
  for (int i = 0; i <= 5; ++i) {
    const double x = left + width * i / 5;
    const char* const anchor = i == 0 ? "start" : i == 5 ? "end" : "middle";
    out += "<g class=\"tick\">" + grid_line(x, x, top - 6, height) + text(x, 14, seconds_text(total * i / 5), anchor) +
           "</g>\n";
  }
  double y = top;
  for (const auto& [rank, step] : a.timeline) {
    if (max_rows-- == 0) break;
    out += text(8, y + 14, str("rank ", rank), "start", "ink") + rect("idle", left, y, width, row, "idle");
    const auto box = [&](const Interval& one, double at, double tall, bool label) {
      const double x = left + (one.begin - begin) * scale, w = (one.end - one.begin) * scale;
      const std::string place = format(" data-b=\"%.9g\" data-e=\"%.9g\"", one.begin - begin, one.end - begin);
      out += rect(
          color_of(one.part), x, at, std::max(w, 0.4), tall,
          (one.name.empty() ? std::string(name_of(one.part)) : one.name) + ", " + seconds_text(one.end - one.begin),
          place);
      const size_t space = one.name.rfind(' ');
      const bool numbered =
          space != one.name.npos && one.name.find_first_not_of("0123456789", space + 1) == one.name.npos;
      if (!label || !numbered || one.part == StepPhase::communication) return;
      const std::string number = one.name.substr(space + 1);
      const bool fits = w > double(number.size()) * 5.6 + 4;
      out +=
          text(x + w / 2, at + tall / 2 + 4, number, "middle", "in", place + (fits ? "" : " style=\"display:none\""));
    };
    for (const Interval& one : step.work)
      if (one.part != StepPhase::other || !one.name.empty()) box(one, y, row, true);
    for (const Interval& one : step.collectives) box(one, y + row + 1, thin - 1, false);
    y += row + thin + gap;
  }
  return out + "</svg>\n";
}

std::string split_chart(const Analysis& a, size_t max_rows) {
  const auto sum_of = [](const auto& split) { return std::accumulate(split.begin(), split.end(), 0.); };
  double greatest = 0;
  for (const auto& [rank, split] : a.split) greatest = std::max(greatest, sum_of(split));
  if (greatest <= 0) return "";
  constexpr double left = 64, width = 920, row = 22, gap = 6;
  const double rows = double(std::min(max_rows, a.split.size()));
  std::string out = open("split", left + width + 92, rows * (row + gap) + 4, "where the time of a step goes");
  double y = 2;
  for (const auto& [rank, split] : a.split) {
    if (max_rows-- == 0) break;
    out += text(8, y + 15, str("rank ", rank), "start", "ink");
    double x = left;
    for (int p = 0; p < parts; ++p) {
      const double w = split[size_t(p)] / greatest * width;
      if (w <= 0) continue;
      const std::string seconds = seconds_text(split[size_t(p)]);
      out += rect(color_of(StepPhase(p)), x, y, w, row, str(name_of(StepPhase(p)), ", ", seconds));
      if (w > 44) out += text(x + w / 2, y + 15, seconds, "middle", "in");
      x += w;
    }
    out += text(x + 8, y + 15, seconds_text(sum_of(split)));
    y += row + gap;
  }
  return out + "</svg>\n";
}

std::string memory_chart(const Analysis& a) {
  double greatest = 0;
  for (const MemoryRow& m : a.memory) greatest = std::max({greatest, m.measured, m.formula ? m.formula->bytes : 0});
  if (greatest <= 0) return "";
  constexpr double left = 110, width = 700, row = 20, gap = 10;
  std::string out =
      open("memory", left + width + 250, double(a.memory.size()) * (row + gap) + 4, "memory of a rank by category");
  double y = 2;
  for (const MemoryRow& m : a.memory) {
    const auto length = [&](double bytes) { return bytes / greatest * width; };
    double x = length(m.measured);
    out += text(left - 10, y + 14, m.category, "end", "ink") +
           rect("measured", left, y + 2, std::max(x, 1.), row - 4, "measured");
    std::string words = bytes_text(m.measured);
    if (m.formula) {
      out += rect("formula", left, y, std::max(length(m.formula->bytes), 1.), row, "formula");
      x = std::max(x, length(m.formula->bytes));
      words += ", formula " + bytes_text(m.formula->bytes);
    }
    out += text(left + x + 10, y + 14, words);
    y += row + gap;
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::report
