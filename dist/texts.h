#pragma once
// Short texts from rank to rank: what they have, what went wrong.
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Everybody's text, by rank. Called by all ranks.
std::vector<std::string> gather_texts(const std::string& mine, ProcessGroup& group, const std::string& tag);
/// What rank `root` says, on all ranks, which call it.
std::string broadcast_text(const std::string& text, int root, ProcessGroup& group, const std::string& tag = "text");

}  // namespace lockstep::dist
