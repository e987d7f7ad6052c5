#pragma once
// "auto" in a configuration file: values are filled in from what the caller knows, and values in the file must agree
// with the arguments. The table of keys is in auto.cpp.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/json.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace lockstep::train {

/// The caller's values for "auto". The functions are called only if the file needs them.
struct AutoValues {
  nn::Module* model = nullptr;  ///< the model; its width h sets ZeRO's bucket sizes: h^2, 0.9 h^2, 10 h
  std::function<const optim::Optimizer*()> optimizer = {};  ///< gives learning rate, betas, eps, weight decay
  std::function<int64_t(int64_t train_batch)> steps = {};   ///< total number of training steps
  double warmup_steps = 0;  ///< steps of warmup, for a schedule in the file; below 1: a fraction of all steps
  std::optional<int64_t> micro_batch = {}, accumulation = {};  ///< replace --batch and --accumulate
  /// Norm to which gradients are clipped. If empty, fill_auto() takes gradient_clipping from its argument `own`.
  std::optional<double> max_grad_norm = {};
  bool optimizer_is_argument = false;  ///< true: Error if the file's optimizer options differ from `optimizer`
  bool all_are_arguments = false;      ///< true: Error also if clipping norm, number of steps or warmup differ
};

/// Collects contradictions and "auto" values that nobody knows, for one Error.
struct AutoProblems {
  std::vector<std::string> mismatches, unfilled;
  /// Records a contradiction: the file has the value `file` for `key`, but the argument named `argument` is `value`.
  void differ(const std::string& key, const data::Json& file, const std::string& argument, const data::Json& value);
  /// If there are problems, throws one Error that begins with `origin` and lists all of them.
  void fail_if_any(const std::string& origin) const;
};
/// Replaces "auto" for the keys in the table. own: the program's default configuration. half: the 16-bit dtype that
/// parameters should have ("fp16" or "bf16"), or "". steps_option: the name by which Errors call the option --steps.
void fill_auto(data::Json& json, const AutoValues& values, const data::Json& own, int64_t ranks,
               const std::string& half, const std::string& steps_option, AutoProblems& problems);

/// True if a and b are equal. Numbers compare as numbers: 1e-5 equals 0.00001, and 4 equals 4.0.
bool same_value(const data::Json& a, const data::Json& b);
/// The value under a dotted path such as "zero_optimization.stage", or nullptr.
const data::Json* find_at(const data::Json& root, std::string_view path);
/// Sets the value under a dotted path and creates the objects on the way.
void put_at(data::Json& root, std::string_view path, data::Json value);
/// Reads `from` into `to`. If the value is of another kind than `to`, throws an Error that begins with `where`.
inline void read_as(const data::Json& from, bool& to, const std::string& where) { to = from.as_bool(where); }
inline void read_as(const data::Json& from, int64_t& to, const std::string& where) { to = from.as_int(where); }
inline void read_as(const data::Json& from, double& to, const std::string& where) { to = from.as_number(where); }
/// True if the path has a value other than "auto".
bool is_said(const data::Json& root, std::string_view path);
/// True if the path has the value "auto".
bool is_auto(const data::Json& root, std::string_view path);

}  // namespace lockstep::train
