#pragma once
// Texts that ranks tell each other.
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Everybody's text, by rank.
std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& mine, const std::string& tag);
/// What rank `root` says.
std::string broadcast_text(ProcessGroup& group, const std::string& text, int root, const std::string& tag);

}  // namespace lockstep::dist
