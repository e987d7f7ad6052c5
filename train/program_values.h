#pragma once
// The values that a program knows before it has a configuration. Extensions add steps (ConfigStep), which use these
// values to complete the configuration.
//
// An extension's meson.build sets `config_steps = ['NAME']`, and one of its sources defines
// std::vector<ConfigStep> lockstep::train::NAME(). meson generates the list, from the extensions that are built
// (lockstep/list.cpp.in). A step may replace values of the configuration, such as "auto", and reports values that
// contradict the program's.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace lockstep::train {

/// The program's values. The functions are called only if a configuration needs them.
struct ProgramValues {
  nn::Module* model = nullptr;                              ///< the model
  std::function<const optim::Optimizer*()> optimizer = {};  ///< returns the optimizer and its options
  std::function<int64_t(int64_t train_batch)> steps = {};   ///< total number of training steps
  double warmup_steps = 0;  ///< steps of warmup, for a schedule in the file; below 1: a fraction of all steps
  std::optional<int64_t> micro_batch = {}, accumulation = {};  ///< replace --batch and --accumulate
  /// Norm to which gradients are clipped. If empty, gradient_clipping of the program's default configuration counts.
  std::optional<double> max_grad_norm = {};
  bool optimizer_is_argument = false;  ///< true: Error if the file's optimizer options differ from `optimizer`
  bool all_are_arguments = false;      ///< true: Error also if clipping norm, number of steps or warmup differ
};

/// Collects contradictions, and "auto" values that no step could fill in, for one Error.
struct Contradictions {
  std::vector<std::string> mismatches, unfilled;
  /// Records a contradiction: the file has the value `file` for `key`, but the argument named `argument` is `value`.
  void differ(const std::string& key, const data::Json& file, const std::string& argument, const data::Json& value);
  /// If there are problems, throws one Error that begins with `origin` and lists all of them.
  void fail_if_any(const std::string& origin) const;
};

/// A configuration that the steps complete, before the engine reads it.
struct ConfigDraft {
  data::Json& json;               ///< the file, --set and options
  const ProgramValues& values;    ///< the program's values
  const data::Json& own;          ///< the program's default configuration
  int64_t ranks = 1;              ///< data-parallel ranks
  std::string half = {};          ///< 16-bit dtype that parameters should have ("fp16" or "bf16"), or ""
  std::string steps_option = {};  ///< the name by which Errors call the option --steps
  Contradictions& problems;       ///< receives the problems that steps find
};
/// A step that completes a configuration.
using ConfigStep = void (*)(const ConfigDraft& draft);
/// The steps of the extensions that are built.
const std::vector<ConfigStep>& config_steps();

}  // namespace lockstep::train
