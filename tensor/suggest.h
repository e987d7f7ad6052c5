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

/// The first names: "a, b and 3 more".
std::string list_names(const std::vector<std::string>& names, size_t most = 20);

}  // namespace lockstep
