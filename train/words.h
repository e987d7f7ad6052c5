#pragma once
// Options with several values in one string: "8,top_k=2,noise=jitter".
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"

namespace lockstep::train {

/// Returns the first word, and an object of the KEY=VALUE pairs after it. A value is JSON if it parses, else a string.
/// Error for a word without "=", a repeated key, or a key that is not in `known`. The Error begins with `origin`, and
/// for an unknown key suggests the nearest one.
std::pair<std::string, data::Json> parse_words(const std::string& text, const std::vector<std::string>& known,
                                               const std::string& origin);

}  // namespace lockstep::train
