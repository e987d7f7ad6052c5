#pragma once
// Adds options to a command of your own: puts them in a group of the help, checks their text and converts it.
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/classic_text.h"
#include "train/options.h"

namespace lockstep::train {

/// Returns `words`, followed by the precisions of extensions.
std::vector<std::string> with_precisions(std::vector<std::string> words);

/// Adds options to a group of a command's help ("": the first group). A bool becomes a flag. The help shows defaults
/// other than 0 and "".
template <class App> class OptionGroup {
 public:
  explicit OptionGroup(App& app, std::string group = "") : app_(app), group_(std::move(group)) {}
  template <class T>
  auto* operator()(const std::string& names, T& to, const std::string& what, const auto&... checks) const {
    if constexpr (std::is_same_v<T, bool>) {
      return in_group(app_.add_flag(names, to, what));
    } else if constexpr (std::is_floating_point_v<T>) {  // CLI11's own conversion depends on the locale
      auto* option = app_.template add_option_function<std::string>(
          names, [&to](const std::string& text) { to = T(*read_number<double>(text)); }, what);
      in_group(option)->type_name("FLOAT");
      (option->check(checks), ...);
      option->check(number(-HUGE_VAL, HUGE_VAL));
      return to == T() ? option : option->default_str(str(to));
    } else {
      auto* option = in_group(app_.add_option(names, to, what));
      (option->check(checks), ...);
      if constexpr (std::is_integral_v<T>) return to == T() ? option : option->default_str(str(to));
      else return to == T() ? option : option->capture_default_str();
    }
  }
  /// Moves an option of CLI11 to this group of the help.
  auto* in_group(auto* option) const { return group_.empty() ? option : option->group(group_); }

 private:
  App& app_;
  std::string group_;
};

}  // namespace lockstep::train
