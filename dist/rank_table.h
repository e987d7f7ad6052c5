#pragma once
// The store's table of ranks, and its conclusions: which rank is silent, which one waits for a rank that has left,
// which ones deadlock. No sockets and no clock in here; `now` is in seconds and supplied by the caller.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/control.h"

namespace lockstep::dist {

/// A rank's description of itself when it joins.
struct Member {
  int rank = 0;
  int world_size = 1;
  uint32_t pid = 0;
  std::string host;      ///< host name, for messages
  std::string identity;  ///< Rendezvous::identity
  std::string job;
  uint64_t incarnation = 0;  ///< random; identifies a rank that connects again
};

/// Records which ranks have joined or left and what each one does, and detects failures.
class RankTable {
 public:
  /// `heartbeat`: interval in seconds, which all limits are derived from.
  RankTable(int world_size, double heartbeat) : heartbeat_(heartbeat), seats_(size_t(world_size)) {}

  /// The reason why `member` cannot join, or nothing. The settings of `member` must agree with those of `host`, rank 0.
  std::optional<std::string> objection(const Member& host, const Member& member) const;
  /// Records that a rank has joined.
  void sit(const Member& member, double now);
  /// Records that a rank's connection was lost before the job had begun. The rank may join again.
  void stand_up(int rank) { seats_[size_t(rank)].state = State::empty; }

  void heard(int rank, double now) { seats_[size_t(rank)].heard = now; }  ///< records that a rank sent something
  /// Records a rank's activity. `renewed`: true for an explicit report of a wait, false for a heartbeat.
  void doing(int rank, const Activity& activity, bool renewed, double now);
  /// Records that a rank has left. `completed`: the rank's number of completed collectives, by group.
  void left(int rank, const std::map<std::string, uint64_t>& completed, double now);
  void begin(double now);  ///< called when all ranks have joined: silence counts from now on

  bool complete() const { return missing().empty(); }  ///< true once all ranks have joined
  /// True if the rank has left the job.
  bool has_left(int rank) const { return seats_[size_t(rank)].state == State::left; }
  /// True if every rank has left the job.
  bool all_left() const;
  int size() const { return int(seats_.size()); }  ///< world size
  std::vector<int> missing() const;                ///< ranks that have not joined
  std::vector<int> everybody() const;              ///< 0 .. size() - 1

  /// The error for a rank whose connection was lost. It names the rank's last known call.
  DistError died(int rank) const;
  /// The error for rank `who`, whose current call cannot complete, because `ranks` have left the job.
  DistError gone(int who, const std::vector<int>& ranks) const;
  /// The error for rank `who`, which found that `rank` has left. Also names other ranks that left before the same call.
  DistError gone(int who, int rank) const;
  /// The error for rank `who`, which waits at `what`, such as "barrier 'x'", for ranks that have left.
  DistError gone_from(const std::string& what, int who, const std::vector<int>& ranks) const;
  /// The first failure found, if any: a silent rank, a wait for a rank that has left, or a deadlock.
  std::optional<DistError> judge(double now) const;
  /// Returns a phrase for each of these ranks that tells its state.
  std::string explain(const std::vector<int>& ranks) const;
  std::string who(int rank) const;  ///< "rank 1 (pid 1234 on host)"

 private:
  enum class State { empty, seated, left };
  struct Seat {
    State state = State::empty;
    Member member;
    double heard = 0, left_at = 0;
    Activity activity;
    std::map<std::string, uint64_t> completed;  // number of completed collectives, by group
    double waits_since = 0, renewed = 0;  // waits_since: start of the current wait; renewed: its last explicit report
  };
  bool waits(const Seat& seat, double now) const;
  bool is_real(int waiter, const Seat& peer) const;
  std::vector<int> left_behind(int rank) const;
  std::optional<DistError> silent(double now) const;
  std::optional<DistError> circle(double now) const;
  std::string place_of(const Activity& activity) const;

  double heartbeat_;
  std::vector<Seat> seats_;
};

}  // namespace lockstep::dist
