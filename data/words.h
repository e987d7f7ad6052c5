#pragma once
// Options that say several things at once: "8,top_k=2,noise=jitter".
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"

namespace lockstep::data {

/// What stands first, and an object of the keys after it; values as JSON has them, or words. Error that begins with
/// `origin` for a key that is not among `known`, with the nearest one, or a word that is no KEY=VALUE.
std::pair<std::string, Json> parse_words(const std::string& text, const std::vector<std::string>& known,
                                         const std::string& origin);

}  // namespace lockstep::data
