// Formats and parses quantities with units. See quantity.h.
#include "extensions/figures/quantity.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/classic_text.h"

namespace lockstep {

std::string seconds_text(double s) {
  if (s == 0) return "0";
  return s >= 100    ? format("%.0f s", s)
         : s >= 1    ? format("%.2f s", s)
         : s >= 1e-3 ? format("%.3g ms", s * 1e3)
                     : format("%.3g us", s * 1e6);
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return format(unit == 0 ? "%.0f %s" : "%.3g %s", bytes, units[unit]);
}

std::string memory_text(int64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

const Units byte_units = {{"B", 1},     {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                          {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};

std::optional<double> parse_quantity(const std::string& text, const Units& units) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string unit(rest, end);
  unit.erase(0, unit.find_first_not_of(' '));
  const auto found = std::find_if(units.begin(), units.end(), [&](const auto& u) { return u.first == unit; });
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  if (unit.empty()) return value;
  return found == units.end() ? std::nullopt : std::optional(value * found->second);
}

}  // namespace lockstep
