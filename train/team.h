#pragma once
// Ranks that train together, as a program sees them: how it joins them, who prints.
//
// A step is a fixed list of micro-batches 0 .. M-1, M = ranks x accumulate; rank r has r*A .. r*A+A-1. Data, dropout
// and the order of every sum follow from that number alone, so the bits of a run depend on the list, not on who
// computes it:
//
//   --accumulate 4        one process    0 1 2 3
//   --accumulate 2        two ranks      0 1 | 2 3
//   --accumulate 1        four ranks     0 | 1 | 2 | 3
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "train/options.h"

namespace lockstep::train {

/// A signal asked a training to stop, and it did, with its checkpoint written.
struct Stopped {
  int signal;
};

/// The ranks that train together, as one of them sees them.
class Team {
 public:
  explicit Team(dist::ProcessGroup* group, bool threads = false)
      : group_(group), threads_(threads), leads_(!group || group->rank() == 0) {}
  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  /// Among the ranks of this machine.
  int local_rank() const;
  /// Rank 0 prints, and writes the files of a run.
  bool leads() const { return leads_; }
  /// The one rank of a process that may touch what belongs to the process (signals).
  bool owns_process() const { return !threads_ || leads(); }
  /// This run ends before its last step, as all ranks know: its process will exit with 128 + signal.
  void note_stop(int signal) const { stopped_by_ = signal; }
  int stopped_by() const { return stopped_by_; }
  /// Null when this process trains alone.
  dist::ProcessGroup* group() const { return group_; }
  /// Returns when all ranks are here.
  void wait() const {
    if (group_) group_->barrier();
  }
  /// Error when ranks hold other data: an old copy on one host would train on it without a word. `what` names them.
  void check_same(const std::string& what, const std::vector<const Tensor*>& data) const;
  /// The same of data that is not a tensor, by its number of elements and a hash.
  void check_same(const std::string& what, int64_t elements, uint64_t hash) const;
  /// Element-wise sum over ranks. Exact when every element is zero on all ranks but one: so a list is put together.
  void sum(std::vector<double>& values, const char* tag) const;
  /// Everybody's values, one rank after another.
  std::vector<double> gather(const std::vector<double>& values, const char* tag) const;

 private:
  void check_same_hashes(const std::string& what, const std::vector<int64_t>& mine) const;
  dist::ProcessGroup* group_;
  bool threads_, leads_;
  mutable int stopped_by_ = 0;
};

/// Runs `body` on every rank: joins the job that the environment names, makes threads (--ranks), or runs alone. What a
/// rank throws is what all ranks raise. Throws Stopped when a signal ended the work early.
void run_team(const ParallelOptions& options, const std::function<void(Team&)>& body);
/// The linker's hash of this program, so that ranks of different builds do not meet.
std::string build_id();
/// Error when this process is one of several ranks, for commands that would only repeat each other.
void check_alone(const std::string& command);
/// "rank 1: " in a job of several ranks, for messages; else empty.
std::string rank_prefix();
/// Writes the error to LOCKSTEP_ERROR_FILE, where the launcher looks for it. Nothing when unset.
void write_error_file(const std::string& message) noexcept;

/// Where this rank computes. "cuda" leaves the number to us: ranks of one machine take its devices in turn. Error that
/// says why when there is none.
Device device_of(const CommonOptions& options, const Team& team);

}  // namespace lockstep::train
