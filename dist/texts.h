#pragma once
// Collectives on short texts.
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// All ranks' texts, by rank. Called by all ranks.
std::vector<std::string> gather_texts(const std::string& mine, ProcessGroup& group, const std::string& tag);
/// The text of rank `root`, on all ranks. Called by all ranks.
std::string broadcast_text(const std::string& text, int root, ProcessGroup& group, const std::string& tag = "text");

}  // namespace lockstep::dist
