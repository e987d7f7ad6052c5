#pragma once
// The defaults for generation in a Hugging Face folder: generation_config.json.
#include <set>
#include <string>
#include <vector>

#include "extensions/generation/sampling.h"

namespace lockstep::nn {

/// Sets the options of `g` that folder/generation_config.json sets, but for those in `keep`. Without the file nothing
/// changes. Returns notes about keys that would change the text and are not supported: "typical_p 0.9". End tokens are
/// set by train::end_tokens(). Error, naming file and key, for wrong values.
std::vector<std::string> use_generation_config(const std::string& folder, Generation& g,
                                               const std::set<std::string>& keep = {});

}  // namespace lockstep::nn
