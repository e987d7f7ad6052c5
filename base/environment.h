#pragma once
// The LOCKSTEP_* environment variables: one list from which they are read, checked and documented
// (docs/environment.md).
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// The documentation and the allowed values of one environment variable.
struct EnvironmentVariable {
  /// Type of the value. flag: 0 or 1; integer: a whole number; seconds: a number; word: one of `words`.
  enum class Kind { text, flag, integer, seconds, word };
  const char* name;
  Kind kind;
  const char *fallback, *doc;           ///< default and description, for people
  double least = 0, greatest = 0;       ///< range of whole and seconds
  std::vector<std::string> words = {};  ///< values of word
};
/// All LOCKSTEP_* variables that the library and its tools read.
const std::vector<EnvironmentVariable>& environment_variables();

/// The value of a variable of the list, or nothing if it is unset or empty. Error if the value is not allowed. Also an
/// Error if any LOCKSTEP_* variable of the process is not in the list. The message suggests the nearest name.
std::optional<std::string> environment(const char* name);
/// environment() as a number.
std::optional<double> environment_number(const char* name);
/// environment() as a flag: 1 is true, 0 is false. Unset is false, whatever default the list documents.
bool environment_flag(const char* name);
/// Checks all LOCKSTEP_* variables of the process, so that programs can report errors at their start.
void check_environment();
/// The text of docs/environment.md: docs/environment.md.in, and a row for each variable.
std::string environment_reference();

}  // namespace lockstep
