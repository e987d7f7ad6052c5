#pragma once
// Which layers a stage gets: consecutive ones, so that the heaviest stage is as light as can be. With several chunks a
// rank the sum of a rank's chunks counts as well, and which of them are the heavier ones: there the schedule says how
// long a step takes.
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule.h"

namespace lockstep::pipeline {

/// What a layer weighs: 1 (uniform), its parameters, its measured seconds, or 1 when its kind matches a pattern and 0
/// otherwise (DeepSpeed's "type:PATTERN", case ignored).
struct SplitBy {
  enum class Method { uniform, parameters, type, time } method = Method::parameters;
  std::string pattern;          ///< type: a regular expression, found anywhere in the kind
  std::vector<double> seconds;  ///< time: forward and backward of each layer (engine::measure())

  /// "uniform", "parameters", "type:Block"; "best" is DeepSpeed's other name of "parameters". Error with the known
  /// ones.
  static SplitBy parse(std::string_view text);
};
std::string to_string(const SplitBy& by);

/// Where each of `parts` consecutive parts begins, and the end: n + 1 rising numbers. The largest sum of weights in a
/// part is the smallest possible, and no part is empty. Error for fewer weights than parts, and for weights that are
/// negative or not finite.
std::vector<int> balance(const std::vector<double>& weights, int parts);
/// The same for the virtual stages of `schedule`. With several chunks a rank: begins there, or at its mirror image, and
/// moves a layer's place from one part to another as long as that makes the simulated step shorter, for a second or
/// two.
std::vector<int> balance(const std::vector<double>& weights, const Schedule& schedule);

/// The weights of layers under `by`. Error when no kind matches the pattern, or when the times are not those of the
/// layers.
std::vector<double> weights_of(const SplitBy& by, const std::vector<std::string>& kinds,
                               const std::vector<double>& parameters);

}  // namespace lockstep::pipeline
