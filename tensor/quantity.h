#pragma once
// Quantities for people: as text, and read from it.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

std::string seconds_text(double seconds);  ///< "12.3 ms"
std::string bytes_text(double bytes);      ///< "1.23 GB", by thousands
std::string memory_text(int64_t bytes);    ///< "1.2 GiB", by 1024s
using Units = std::vector<std::pair<std::string, double>>;
extern const Units byte_units;  ///< "B", "kB", ..., "TiB"
/// A number of 0 or more with one of the units, such as "100MB" or "5 us", or without: as it is. Nothing for other
/// texts.
std::optional<double> parse_quantity(const std::string& text, const Units& units);

}  // namespace lockstep
