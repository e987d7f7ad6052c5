#pragma once
// What the store knows about the ranks, and what it concludes: who is silent, who waits for a rank that has left, who
// waits in a circle. No sockets and no clock in here; `now` is a number of seconds that the caller counts.
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/control.h"

namespace lockstep::dist {

/// What a rank says of itself when it joins.
struct Member {
  int rank = 0;
  int world_size = 1;
  uint32_t pid = 0;
  std::string host;      ///< name, for people
  std::string identity;  ///< Rendezvous::identity
  std::string job;
  uint64_t incarnation = 0;  ///< random; a rank that connects again is known by it
};

class Roster {
 public:
  Roster(int world_size, double heartbeat) : heartbeat_(heartbeat), seats_(size_t(world_size)) {}

  /// Why this member cannot take its seat, or nothing. `host` is the member of rank 0's process, that the others must
  /// agree with.
  std::optional<std::string> objection(const Member& host, const Member& member) const;
  void sit(const Member& member, double now);
  void stand_up(int rank) {
    seats_[size_t(rank)].state = State::empty;
  }  ///< before the job has begun: it may come again
  void heard(int rank, double now) { seats_[size_t(rank)].heard = now; }
  void doing(int rank, const Activity& activity, bool renewed, double now);
  void left(int rank, const std::map<std::string, uint64_t>& completed, double now);
  void begin(double now);  ///< all are there: silence counts from now on

  bool complete() const { return missing().empty(); }
  bool has_left(int rank) const { return seats_[size_t(rank)].state == State::left; }
  bool all_left() const;
  int size() const { return int(seats_.size()); }
  std::vector<int> missing() const;
  std::vector<int> everybody() const;

  DistError died(int rank) const;
  /// Rank `who` waits for ranks that have left, in what it does.
  DistError gone(int who, const std::vector<int>& ranks) const;
  /// Rank `who` found that `rank` has left: names the others that left as well without what `who` is in.
  DistError gone(int who, int rank) const;
  /// Like gone(), for a wait that has a name: "barrier 'x'".
  DistError gone_from(const std::string& what, int who, const std::vector<int>& ranks) const;
  /// The first thing that is wrong, if any.
  std::optional<DistError> judge(double now) const;
  std::string explain(const std::vector<int>& ranks) const;
  std::string who(int rank) const;  ///< "rank 1 (pid 1234 on host)"

 private:
  enum class State { empty, seated, left };
  struct Seat {
    State state = State::empty;
    Member member;
    double heard = 0, left_at = 0;
    Activity activity;
    std::map<std::string, uint64_t> completed;  // per group
    double waits_since = 0, renewed = 0;        // of the same wait
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
