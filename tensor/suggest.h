#pragma once
// Parts of messages: "did you mean ...?" for misspelt names, lists, counted nouns.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// "; did you mean NAME?" with the known name nearest to `word`; "" if none is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

/// "a, b or c".
std::string listed(const std::vector<std::string>& names);

/// The first `most` names: "a, b and 3 more".
std::string list_names(const std::vector<std::string>& names, size_t most = 20);

/// "1 rank", "2 ranks"; "3 micro-batches".
std::string counted(int64_t n, const std::string& what);

/// The parts between separators: "a,,b" has three parts, "" has one.
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace lockstep
