#pragma once
// What ranks tell each other during a save or load: short texts.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::checkpoints {

/// The ranks that save or load together; a null group is a rank alone.
struct Ranks {
  dist::ProcessGroup* group = nullptr;
  std::function<void(const std::string&)> hear = {};  ///< what warn() says; empty: a line on stderr

  int rank() const { return group ? group->rank() : 0; }
  int world() const { return group ? group->size() : 1; }
  bool leads() const { return rank() == 0; }
  bool are_one() const { return world() == 1; }
  void warn(const std::string& what) const;
  /// Waits for all ranks, at most `timeout`: DistError that names those that do not come, or what they do instead.
  void meet(const std::string& what, dist::Seconds timeout) const {
    if (!are_one()) group->barrier(timeout, what);
  }
  /// Everybody's text, by rank.
  std::vector<std::string> gather(const std::string& mine, const std::string& what) const;
  /// Rank 0's text.
  std::string broadcast(const std::string& text, const std::string& what) const;
};
/// A list as one text, whatever bytes are in it, and back.
std::string pack(const std::vector<std::string>& list);
std::vector<std::string> unpack(const std::string& text);
/// The message of the Error that fn throws, or "". A DistError, which all ranks raise anyway, goes through.
std::string error_of(const std::function<void()>& fn);

/// Notes on a board in the job's store, from any thread: rank r pins a text to a place, others wait for it there. A
/// place is used again in every round, so that a job may save for ever.
class Board {
 public:
  Board(const Ranks& ranks, const std::string& id) : ranks_(ranks), prefix_("checkpoint/" + id + "/") {}
  void next_round() { ++round_; }
  void pin(const std::string& place, const std::string& text);
  /// Error naming `who` when it takes longer than `timeout`.
  std::string read(const std::string& place, dist::Seconds timeout, const std::string& who);

 private:
  const Ranks& ranks_;
  std::string prefix_;
  uint64_t round_ = 0;
};

}  // namespace lockstep::checkpoints
