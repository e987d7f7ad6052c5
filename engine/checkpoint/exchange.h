#pragma once
// What ranks tell each other during a save or load: short texts.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::checkpoints {

/// Waits for all ranks, at most `timeout`: DistError that names those that do not come, or what they do instead.
void meet(dist::ProcessGroup* group, const std::string& what, dist::Seconds timeout);
/// Everybody's text, by rank. A null group is a rank alone.
std::vector<std::string> gather_texts(dist::ProcessGroup* group, const std::string& mine, const std::string& what);
/// Rank 0's text.
std::string broadcast_text(dist::ProcessGroup* group, const std::string& text, const std::string& what);
/// A list as one text, whatever bytes are in it, and back.
std::string pack(const std::vector<std::string>& list);
std::vector<std::string> unpack(const std::string& text);
/// The message of the Error that fn throws, or "". A DistError, which all ranks raise anyway, goes through.
std::string error_of(const std::function<void()>& fn);

/// Notes on a board in the job's store, from any thread: rank r pins a text to a place, others wait for it there. A
/// place is used again in every round, so that a job may save for ever.
class Board {
 public:
  Board(dist::ProcessGroup* group, const std::string& id) : group_(group), prefix_("checkpoint/" + id + "/") {}
  void next_round() { ++round_; }
  void pin(const std::string& place, const std::string& text);
  /// Error naming `who` when it takes longer than `timeout`.
  std::string read(const std::string& place, dist::Seconds timeout, const std::string& who);

 private:
  dist::ProcessGroup* group_;
  std::string prefix_;
  uint64_t round_ = 0;
};

}  // namespace lockstep::checkpoints
