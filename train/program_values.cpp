// Contradictions between a configuration and a program's values. See program_values.h.
#include "train/program_values.h"

#include "base/check.h"

namespace lockstep::train {

using data::Json;

void Contradictions::differ(const std::string& key, const Json& file, const std::string& argument, const Json& value) {
  mismatches.push_back(str("- ds ", key, "=", file.dump(), " vs args ", argument, "=", value.dump()));
}

void Contradictions::fail_if_any(const std::string& origin) const {
  if (mismatches.empty() && unfilled.empty()) return;
  std::string text = origin + ": ";
  if (!mismatches.empty()) {
    text += "values that contradict the arguments:";
    for (const std::string& line : mismatches) text += "\n" + line;
    text += "\nThe easiest method is to set these DeepSpeed config values to 'auto'.";
  }
  if (!mismatches.empty() && !unfilled.empty()) text += "\n";
  for (const std::string& line : unfilled) text += (&line == &unfilled.front() ? "" : "\n") + line;
  fail(text);
}

}  // namespace lockstep::train
