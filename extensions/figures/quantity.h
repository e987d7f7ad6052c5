#pragma once
// Formats quantities with units as text for people, and parses such text.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

std::string seconds_text(double seconds);  ///< "12.3 ms"
std::string bytes_text(double bytes);      ///< "1.23 GB", in powers of 1000
std::string memory_text(int64_t bytes);    ///< "1.2 GiB", in powers of 1024
/// Names of units and their factors.
using Units = std::vector<std::pair<std::string, double>>;
extern const Units byte_units;  ///< "B", "kB", ..., "TiB"
/// Parses a number >= 0, with a unit ("100MB", "5 us") or without (factor 1). nullopt for any other text.
std::optional<double> parse_quantity(const std::string& text, const Units& units);

}  // namespace lockstep
