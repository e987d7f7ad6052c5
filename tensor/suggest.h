#pragma once
// "did you mean ...?" for names that were misspelt.
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// "; did you mean NAME?" with the known name that is nearest to `word`; "" when none is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

/// "a, b or c".
std::string listed(const std::vector<std::string>& names);

}  // namespace lockstep
