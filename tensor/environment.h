#pragma once
// The LOCKSTEP_* variables: one list, by which they are read, checked and documented (docs/environment.md).
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct EnvironmentVariable {
  enum class Kind { text, flag, whole, seconds, word };
  const char* name;
  Kind kind;
  const char *fallback, *doc;           ///< what counts when it is not set, for people
  double least = 0, most = 0;           ///< whole and seconds
  std::vector<std::string> words = {};  ///< word
};
const std::vector<EnvironmentVariable>& environment_variables();

/// The value of a variable of the list; nothing when it is not set or empty. Error when it is none of what the list
/// says, and for a LOCKSTEP_* variable of this process that is not in the list, with the nearest name.
std::optional<std::string> environment(const char* name);
/// The same for a number.
std::optional<double> environment_number(const char* name);
/// The same for a flag: 0 is false, anything else true.
bool environment_flag(const char* name);
/// The same for all of them, for programs that say so before they start.
void check_environment();
/// docs/environment.md.
std::string environment_reference();

}  // namespace lockstep
