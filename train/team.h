#pragma once
// The ranks that train together, as a program sees them.
//
// A step consists of micro-batches 0 .. M-1, M = ranks x accumulate. Rank r computes r*A .. r*A + A-1, A = accumulate.
// Data, dropout and the order of every sum depend only on the number of the micro-batch, so the bits of a run do not
// depend on which rank computes what:
//
//   --accumulate 4        one process    0 1 2 3
//   --accumulate 2        two ranks      0 1 | 2 3
//   --accumulate 1        four ranks     0 | 1 | 2 | 3
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "dist/process_group.h"
#include "train/options.h"

namespace lockstep::train {

/// Thrown when a signal stopped a training, after its checkpoint was written.
struct Stopped : Error {
  explicit Stopped(int number) : Error(str("training was stopped by signal ", number)), signal(number) {}
  int exit_code() const noexcept override { return 128 + signal; }
  int signal;
};

/// The group of ranks, seen from one rank.
class Team {
 public:
  /// group: nullptr for one process alone. threads: the ranks are threads of this process.
  explicit Team(dist::ProcessGroup* group, bool threads = false)
      : group_(group), threads_(threads), leads_(!group || group->rank() == 0) {}
  int rank() const { return group_ ? group_->rank() : 0; }  ///< 0 if alone
  int size() const { return group_ ? group_->size() : 1; }  ///< 1 if alone
  /// This rank's number among the ranks of this machine.
  int local_rank() const;
  /// True on rank 0, which prints and writes the files of a run.
  bool leads() const { return leads_; }
  /// True on the one rank of a process that may change process-wide state (signals).
  bool owns_process() const { return !threads_ || leads(); }
  /// Records that a signal ends this run before its last step. Call note_stop() on all ranks. The process then exits
  /// with 128 + signal.
  void note_stop(int signal) const { stopped_by_ = signal; }
  int stopped_by() const { return stopped_by_; }  ///< the signal, or 0
  /// nullptr if this process trains alone.
  dist::ProcessGroup* group() const { return group_; }
  /// Waits until all ranks have made this call (a barrier).
  void wait() const {
    if (group_) group_->barrier();
  }
  /// Collective. Error if ranks have different data, such as an old copy on one host. `what` names the data.
  void check_same(const std::string& what, const std::vector<const Tensor*>& data) const;
  /// check_same() for data that are not tensors: compares their number of elements and their hash.
  void check_same(const std::string& what, int64_t elements, uint64_t hash) const;
  /// Element-wise sum over ranks. Merges the ranks' lists exactly if each element is nonzero on at most one rank.
  void sum(std::vector<double>& values, const char* tag) const;
  /// The values of all ranks, in rank order.
  std::vector<double> gather(const std::vector<double>& values, const char* tag) const;

 private:
  void check_same_hashes(const std::string& what, const std::vector<int64_t>& mine) const;
  dist::ProcessGroup* group_;
  bool threads_, leads_;
  mutable int stopped_by_ = 0;
};

/// Runs `body` on every rank: joins the job described by the environment, starts threads (--ranks), or runs alone. An
/// Error on one rank is raised on all. Throws Stopped if a signal ended the work early.
void run_team(const ParallelOptions& options, const std::function<void(Team&)>& body);
/// The linker's build ID of this program: ranks of different builds must not train together.
std::string build_id();
/// Error if this process is one of several ranks. For commands that run in one process: every rank would do the same.
void check_single_process(const std::string& command);
/// "rank 1: " in a job of several ranks, for messages; else "".
std::string rank_prefix();

/// The device of this rank. With "cuda" the ranks of one machine take its devices in turn. Error, with the reason, if
/// there is no such device.
Device device_of(const CommonOptions& options, const Team& team);

}  // namespace lockstep::train
