#pragma once
// The ranks that save or load a checkpoint together, and the exchange of short texts between them.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::checkpoints {

/// The ranks that save or load together; a null group means a single rank.
struct Ranks {
  dist::ProcessGroup* group = nullptr;
  std::function<void(const std::string&)> hear = {};  ///< receives the text of warn(); default: a line on stderr

  /// Number of this rank in the group.
  int rank() const { return group ? group->rank() : 0; }
  int world() const { return group ? group->size() : 1; }  ///< number of ranks
  bool leads() const { return rank() == 0; }               ///< true on rank 0
  bool are_one() const { return world() == 1; }            ///< true for a single rank
  void warn(const std::string& what) const;                ///< reports a warning
  /// Waits for all ranks, at most `timeout`; a DistError names the missing ranks and their state.
  void meet(const std::string& what, dist::Seconds timeout) const {
    if (!are_one()) group->barrier(timeout, what);
  }
  /// The texts `mine` of all ranks, by rank. `what` names the exchange in errors, here and in broadcast().
  std::vector<std::string> gather(const std::string& mine, const std::string& what) const;
  /// The `text` that rank 0 passes.
  std::string broadcast(const std::string& text, const std::string& what) const;
};
/// Encodes a list of texts, which may contain any bytes, as one text.
std::string pack(const std::vector<std::string>& list);
/// The inverse of pack().
std::vector<std::string> unpack(const std::string& text);
/// The message of the Error that fn throws, or "". A DistError, which all ranks raise anyway, is rethrown.
std::string error_of(const std::function<void()>& fn);

/// A bulletin board in the job's store, usable from any thread: a rank pins a text under a key (`place`), and others
/// wait for the text.
/// Each save is a round. The texts of a round replace those of earlier rounds, so that the store does not grow.
class Board {
 public:
  Board(const Ranks& ranks, const std::string& id) : ranks_(ranks), prefix_("checkpoint/" + id + "/") {}
  void next_round() { ++round_; }                               ///< makes read() ignore texts of earlier rounds
  void pin(const std::string& place, const std::string& text);  ///< publishes a text
  /// Waits until a rank has published a text under the key `place` since the last next_round(), and returns the text.
  /// After `timeout`, throws an Error that names `who`.
  std::string read(const std::string& place, dist::Seconds timeout, const std::string& who);

 private:
  const Ranks& ranks_;
  std::string prefix_;
  uint64_t round_ = 0;
};

}  // namespace lockstep::checkpoints
