#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "report/page.h"
#include "tensor/check.h"

namespace lockstep::report {
namespace {

std::string text(double x, double y, const std::string& words, const char* anchor = "start", const char* look = "") {
  return format("<text x=\"%.4g\" y=\"%.4g\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor, look) + escaped(words) +
         "</text>\n";
}

std::string open(const char* id, double width, double height, const std::string& label, const std::string& more = "") {
  return format("<svg id=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", id, width, height) +
         escaped(label) + "\"" + more + ">\n";
}

/// 1, 2 or 5 times a power of ten, about a fifth of the range.
double tick_of(double range) {
  const double raw = range / 5, power = std::pow(10, std::floor(std::log10(raw))), rest = raw / power;
  return (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10) * power;
}

constexpr size_t most_points = 2000;
constexpr int most_ticks = 12;

}  // namespace

std::string_view color_of(Part part) {
  constexpr std::string_view names[] = {"forward", "backward",      "weights", "optimizer",
                                        "data",    "communication", "other"};
  return names[size_t(part)];
}

std::string loss_chart(const Analysis& a) {
  if (a.loss.empty()) return "";
  constexpr double left = 56, top = 14, width = 960, height = 240;
  double low = INFINITY, high = -INFINITY, first = a.loss.front().first, last = a.loss.back().first;
  for (const auto* curve : {&a.loss, &a.validation})
    for (const auto& [step, value] : *curve)
      low = std::min(low, value), high = std::max(high, value), last = std::max(last, step);
  if (!(high > low)) high = low + std::max(1e-6, std::abs(low) * 0.1), low -= high - low;
  const double pad = (high - low) * 0.06, y_low = low - pad, y_high = high + pad, x_range = std::max(last - first, 1.);
  const auto x = [&](double step) { return left + (step - first) / x_range * width; };
  const auto y = [&](double value) { return top + (y_high - value) / (y_high - y_low) * height; };
  std::string out = open("loss", left + width + 24, top + height + 40, "loss over steps");
  const double tick = tick_of(y_high - y_low);
  for (int i = 0; i < most_ticks; ++i) {
    const double v = std::ceil(y_low / tick) * tick + i * tick;
    if (!(v <= y_high)) break;
    out += format("<line class=\"grid\" x1=\"%.4g\" x2=\"%.4g\" y1=\"%.5g\" y2=\"%.5g\"/>", left, left + width, y(v),
                  y(v)) +
           text(left - 8, y(v) + 4, format("%.4g", std::abs(v) < tick * 1e-6 ? 0. : v), "end");
  }
  const double step = std::max(1., tick_of(x_range));
  for (int i = 0; i < most_ticks; ++i) {
    const double v = std::ceil(first / step) * step + i * step;
    if (v <= last) out += text(x(v), top + height + 18, format("%.6g", v), "middle");
  }
  out += text(left + width / 2, top + height + 36, "step", "middle");
  const auto line = [&](const std::vector<std::pair<double, double>>& curve, const char* look) {
    std::string path;
    const size_t every = curve.size() / most_points + 1;
    for (size_t i = 0; i < curve.size(); i += every)
      path += format("%s%.5g %.5g", path.empty() ? "M" : "L", x(curve[i].first), y(curve[i].second));
    out += format("<path class=\"%s\" d=\"", look) + path + "\"/>\n";
  };
  if (a.loss.size() == 1)
    out +=
        format("<circle class=\"measured\" cx=\"%.5g\" cy=\"%.5g\" r=\"3\"/>", x(a.loss[0].first), y(a.loss[0].second));
  if (a.loss.size() > 40) {  // the curve itself, and what it comes to
    line(a.loss, "curve faint");
    auto smooth = a.loss;
    std::vector<double> sums{0};
    for (const auto& [step, value] : a.loss) sums.push_back(sums.back() + value);
    for (size_t i = 0; i < smooth.size(); ++i) {
      const size_t reach = std::min({i, smooth.size() - 1 - i, smooth.size() / 40});
      smooth[i].second = (sums[i + reach + 1] - sums[i - reach]) / double(2 * reach + 1);
    }
    line(smooth, "curve");
  } else {
    line(a.loss, "curve");
  }
  for (const auto& [at, value] : a.validation)
    out += format("<circle class=\"points\" cx=\"%.5g\" cy=\"%.5g\" r=\"3.5\"><title>", x(at), y(value)) +
           escaped(format("validation %.5g after step %g", value, at)) + "</title></circle>\n";
  return out + "</svg>\n";
}

std::string timeline_chart(const Analysis& a, size_t shown) {
  constexpr double left = 64, top = 26, width = 1000, row = 20, thin = 8, gap = 8;
  double begin = INFINITY, end = -INFINITY;
  for (const auto& [rank, step] : a.timeline) begin = std::min(begin, step.begin), end = std::max(end, step.end);
  if (!(end > begin)) return "";
  const double total = end - begin, scale = width / total;
  const size_t rows = std::min(shown, a.timeline.size());
  const double height = top + double(rows) * (row + thin + gap) + 4;
  std::string out = open("timeline", left + width + 12, height, "timeline of a step",
                         format(" data-left=\"%g\" data-width=\"%g\" data-seconds=\"%.9g\"", left, width, total));
  for (int i = 0; i <= 5; ++i) {
    const double x = left + width * i / 5;
    out += format("<g class=\"tick\"><line class=\"grid\" x1=\"%.5g\" x2=\"%.5g\" y1=\"%.4g\" y2=\"%.5g\"/>", x, x,
                  top - 6, height) +
           text(x, 14, seconds_text(total * i / 5),
                i == 0   ? "start"
                : i == 5 ? "end"
                         : "middle") +
           "</g>\n";
  }
  double y = top;
  size_t count = 0;
  for (const auto& [rank, step] : a.timeline) {
    if (count++ == rows) break;
    out += text(8, y + 14, str("rank ", rank), "start", "ink") +
           format("<rect class=\"idle\" x=\"%.5g\" y=\"%.5g\" width=\"%.5g\" height=\"%.4g\"/>\n", left, y, width, row);
    const auto box = [&](const Interval& one, double at, double tall, bool label) {
      const double x = left + (one.begin - begin) * scale, w = (one.end - one.begin) * scale;
      const std::string place = format(" data-b=\"%.9g\" data-e=\"%.9g\"", one.begin - begin, one.end - begin);
      out += format("<rect class=\"%s\" x=\"%.6g\" y=\"%.5g\" width=\"%.5g\" height=\"%.4g\"%s><title>",
                    std::string(color_of(one.part)).c_str(), x, at, std::max(w, 0.4), tall, place.c_str()) +
             escaped(one.name.empty() ? std::string(name_of(one.part)) : one.name) + ", " +
             seconds_text(one.end - one.begin) + "</title></rect>\n";
      const size_t space = one.name.rfind(' ');
      const bool numbered =
          space != one.name.npos && one.name.find_first_not_of("0123456789", space + 1) == one.name.npos;
      if (!label || !numbered || one.part == Part::communication) return;
      const std::string number = one.name.substr(space + 1);
      const bool fits = w > double(number.size()) * 5.6 + 4;
      out += format("<text class=\"in\" x=\"%.6g\" y=\"%.5g\" text-anchor=\"middle\"%s%s>%s</text>\n", x + w / 2,
                    at + tall / 2 + 4, place.c_str(), fits ? "" : " style=\"display:none\"", number.c_str());
    };
    for (const Interval& one : step.work)
      if (one.part != Part::other || !one.name.empty()) box(one, y, row, true);
    for (const Interval& one : step.collectives) box(one, y + row + 1, thin - 1, false);
    y += row + thin + gap;
  }
  return out + "</svg>\n";
}

std::string split_chart(const Analysis& a, size_t shown) {
  double most = 0;
  for (const auto& [rank, split] : a.split) {
    double sum = 0;
    for (const double s : split) sum += s;
    most = std::max(most, sum);
  }
  if (most <= 0) return "";
  constexpr double left = 64, width = 920, row = 22, gap = 6;
  const size_t rows = std::min(shown, a.split.size());
  std::string out = open("split", left + width + 92, double(rows) * (row + gap) + 4, "where the time of a step goes");
  double y = 2;
  size_t count = 0;
  for (const auto& [rank, split] : a.split) {
    if (count++ == rows) break;
    out += text(8, y + 15, str("rank ", rank), "start", "ink");
    double x = left, sum = 0;
    for (int p = 0; p < parts; ++p) {
      const double w = split[size_t(p)] / most * width;
      sum += split[size_t(p)];
      if (w <= 0) continue;
      out += format("<rect class=\"%s\" x=\"%.6g\" y=\"%.5g\" width=\"%.5g\" height=\"%.4g\"><title>",
                    std::string(color_of(Part(p))).c_str(), x, y, w, row) +
             escaped(str(name_of(Part(p)), ", ")) + seconds_text(split[size_t(p)]) + "</title></rect>\n";
      if (w > 44)
        out += format("<text class=\"in\" x=\"%.6g\" y=\"%.5g\" text-anchor=\"middle\">", x + w / 2, y + 15) +
               seconds_text(split[size_t(p)]) + "</text>\n";
      x += w;
    }
    out += text(x + 8, y + 15, seconds_text(sum));
    y += row + gap;
  }
  return out + "</svg>\n";
}

std::string memory_chart(const Analysis& a) {
  double most = 0;
  for (const MemoryRow& m : a.memory) most = std::max({most, m.measured, m.formula ? m.formula->bytes : 0});
  if (most <= 0) return "";
  constexpr double left = 110, width = 700, row = 20, gap = 10;
  std::string out =
      open("memory", left + width + 250, double(a.memory.size()) * (row + gap) + 4, "memory of a rank by category");
  double y = 2;
  for (const MemoryRow& m : a.memory) {
    out += text(left - 10, y + 14, m.category, "end", "ink") +
           format("<rect class=\"measured\" x=\"%.4g\" y=\"%.5g\" width=\"%.5g\" height=\"%.4g\"/>", left, y + 2,
                  std::max(m.measured / most * width, 1.), row - 4);
    double x = m.measured / most * width;
    std::string words = bytes_text(m.measured);
    if (m.formula) {
      out += format("<rect class=\"formula\" x=\"%.4g\" y=\"%.5g\" width=\"%.5g\" height=\"%.4g\"/>", left, y,
                    std::max(m.formula->bytes / most * width, 1.), row);
      x = std::max(x, m.formula->bytes / most * width);
      words += ", formula " + bytes_text(m.formula->bytes);
    }
    out += text(left + x + 10, y + 14, words) + "\n";
    y += row + gap;
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::report
