#pragma once
// Assigns consecutive layers to stages so that the heaviest stage is as light as possible. With several chunks per
// rank, it minimises the simulated step time instead, which also depends on the sum of each rank's weights and on the
// order of light and heavy chunks.
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule.h"

namespace lockstep::pipeline {

/// The weight of a layer: 1 (uniform), its number of parameters, its measured seconds, or 1 if its kind matches a
/// pattern and 0 otherwise (DeepSpeed's "type:PATTERN", case ignored).
struct SplitBy {
  /// How layers are weighed.
  enum class Method { uniform, parameters, type, time } method = Method::parameters;
  std::string pattern;          ///< for type: a regular expression, searched in the layer's kind
  std::vector<double> seconds;  ///< for time: forward plus backward of each layer (engine::measure())

  /// Parses "uniform", "parameters" or "type:Block"; "best" is DeepSpeed's other name of "parameters". Error lists the
  /// known names.
  static SplitBy parse(std::string_view text);
};
/// The text that parse() reads; "time" for measured seconds.
std::string to_string(const SplitBy& by);

/// Cuts the weights into `parts` consecutive parts, none empty, so that the largest sum of a part is minimal. Returns
/// the index of the first weight of each part, then the number of weights. Error for fewer weights than parts, and for
/// weights that are negative or not finite.
std::vector<int> balance(const std::vector<double>& weights, int parts);
/// Cuts the weights into the virtual stages of `schedule`. With several chunks per rank, a local search begins with the
/// faster of two cuts: balance() from the first weight to the last, and balance() from the last weight to the first. It
/// moves boundaries by one layer as long as that shortens the simulated step, for at most a second or two.
std::vector<int> balance(const std::vector<double>& weights, const PipelineSchedule& schedule);

/// The weight of each layer under `by`, from the layers' kinds and numbers of parameters. Error if no kind matches
/// by.pattern, or if by.seconds does not have one entry for each layer.
std::vector<double> weights_of(const SplitBy& by, const std::vector<std::string>& kinds,
                               const std::vector<double>& parameters);

}  // namespace lockstep::pipeline
