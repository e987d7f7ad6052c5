#pragma once
// "auto" in a configuration file: what whoever prepares knows fills it in, and what the file says itself must agree
// with the arguments. One table of keys; see auto.cpp.
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

/// What is prepared, as far as a file may leave it open. The functions are asked only where it does.
struct AutoValues {
  nn::Module* model = nullptr;                              ///< its width h gives ZeRO's buckets: h^2, 0.9 h^2, 10 h
  std::function<const optim::Optimizer*()> optimizer = {};  ///< learning rate, betas, eps, weight decay
  std::function<int64_t(int64_t train_batch)> steps = {};   ///< of the whole training
  double warmup_steps = 0;                                  ///< of a schedule in the file; below 1: a part of all steps
  std::optional<int64_t> micro_batch = {}, accumulation = {};  ///< in place of --batch and --accumulate
  std::optional<double> max_grad_norm = {};                    ///< not given: that of the program's own keys
  bool optimizer_is_argument = false;  ///< a file that says another lr than `optimizer` is wrong
  bool all_are_arguments = false;      ///< and so is one that says another norm, number of steps, or of warmup
};

/// What differs, or what nobody knows; one Error says all of it.
struct AutoProblems {
  std::vector<std::string> mismatches, unfilled;
  /// The file has `file` under `key`, and the argument of that name is `value`.
  void differ(const std::string& key, const data::Json& file, const std::string& argument, const data::Json& value);
  void fail_if_any(const std::string& origin) const;
};
/// Fills in what is "auto" and in the table. own: the program's keys. half: "fp16", "bf16" or "", of which the
/// parameters are to be. steps_option: what the caller calls --steps.
void fill_auto(data::Json& json, const AutoValues& values, const data::Json& own, int64_t ranks,
               const std::string& half, const std::string& steps_option, AutoProblems& problems);

/// Numbers as numbers: 1e-5 is 0.00001, and 4 is 4.0.
bool same_value(const data::Json& a, const data::Json& b);
/// The value under "zero_optimization.stage"; null when there is none.
const data::Json* find_at(const data::Json& root, std::string_view path);
void put_at(data::Json& root, std::string_view path, data::Json value);
/// Into a field, as its type asks. Error that begins with `where` for another kind of value.
inline void read_as(const data::Json& from, bool& to, const std::string& where) { to = from.as_bool(where); }
inline void read_as(const data::Json& from, int64_t& to, const std::string& where) { to = from.as_int(where); }
inline void read_as(const data::Json& from, double& to, const std::string& where) { to = from.as_number(where); }
/// Whether it is there, and not "auto".
bool is_said(const data::Json& root, std::string_view path);
bool is_auto(const data::Json& root, std::string_view path);

}  // namespace lockstep::train
