#pragma once
// Parts of messages: "did you mean ...?" for misspelt names, lists, counted nouns.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// "; did you mean NAME?" with the known name nearest to `word`; "" if none is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

/// Joins names for a message: "a, b or c".
std::string listed(const std::vector<std::string>& names);

/// Joins the first `max_names` names and counts the others: "a, b and 3 more".
std::string list_names(const std::vector<std::string>& names, size_t max_names = 20);

/// The number and the noun `what`, in the plural unless n is 1: "1 rank", "2 ranks", "3 micro-batches".
std::string counted(int64_t n, const std::string& what);

/// Splits a text at each separator: "a,,b" has three parts, "" has one.
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace lockstep
