// The store's table of ranks and the failures that it detects. See rank_table.h.
#include "dist/rank_table.h"

#include <algorithm>
#include <sstream>

#include "dist/net.h"

namespace lockstep::dist {
namespace {

// Describes the first line in which two texts differ: "'lr=0.1' at rank 0, 'lr=0.2'" (the caller adds the other rank).
std::string first_difference(const std::string& ours, const std::string& theirs) {
  std::istringstream a(ours), b(theirs);
  for (std::string left, right;;) {
    const bool more_left = bool(std::getline(a, left)), more_right = bool(std::getline(b, right));
    if (!more_left) left = "(nothing)";
    if (!more_right) right = "(nothing)";
    if (left != right || (!more_left && !more_right)) return str("'", left, "' at rank 0, '", right, "'");
  }
}

std::string tag_of(const std::string& collective) {
  const size_t at = collective.find("tag ");
  return at == std::string::npos ? collective : collective.substr(at);
}

uint64_t count_for(const std::vector<std::pair<int, uint64_t>>& counts, int rank) {
  for (const auto& [peer, count] : counts)
    if (peer == rank) return count;
  return 0;
}

bool same_wait(const Activity& a, const Activity& b) {
  return a.waiting && b.waiting && a.step == b.step && a.completed == b.completed && a.group == b.group &&
         a.collective == b.collective && a.waits_for == b.waits_for && a.messages == b.messages &&
         a.is_send == b.is_send && a.sent_to == b.sent_to && a.taken_from == b.taken_from;
}

}  // namespace

std::optional<std::string> RankTable::objection(const Member& host, const Member& member) const {
  const std::string them = str("rank ", member.rank, " (pid ", member.pid, " on ", member.host, ")");
  const std::string us = str("rank 0 (pid ", host.pid, " on ", host.host, ")");
  if (member.job != host.job)
    return str("this is job '", host.job, "', ", them, " is of job '", member.job,
               "': another job listens on this port; choose another MASTER_PORT");
  if (member.world_size != host.world_size)
    return str(us, " has world size ", host.world_size, ", ", them, " has world size ", member.world_size,
               ": start all ranks with the same WORLD_SIZE");
  if (member.rank < 0 || member.rank >= host.world_size)
    return str(us, " has world size ", host.world_size, ", so ranks 0 to ", host.world_size - 1, "; ", them,
               " is not one of them");
  const Seat& seat = seats_[size_t(member.rank)];
  if (seat.state != State::empty && seat.member.incarnation != member.incarnation)
    return str("rank ", member.rank, " is taken by ", who(member.rank), "; ", them,
               " joined second: every process needs its own RANK");
  if (member.identity != host.identity)
    return str("ranks must run the same program with the same configuration; first difference: ",
               first_difference(host.identity, member.identity), " at ", them);
  return std::nullopt;
}

void RankTable::sit(const Member& member, double now) {
  Seat& seat = seats_[size_t(member.rank)];
  seat = Seat{};
  seat.state = State::seated;
  seat.member = member;
  seat.heard = now;
}

void RankTable::begin(double now) {
  for (Seat& seat : seats_) seat.heard = now;
}

void RankTable::doing(int rank, const Activity& activity, bool renewed, double now) {
  Seat& seat = seats_[size_t(rank)];
  if (!same_wait(seat.activity, activity)) seat.waits_since = now;
  if (renewed) seat.renewed = now;
  seat.activity = activity;
  if (!activity.group.empty()) seat.completed[activity.group] = activity.completed;
}

void RankTable::left(int rank, const std::map<std::string, uint64_t>& completed, double now) {
  Seat& seat = seats_[size_t(rank)];
  seat.state = State::left;
  seat.left_at = now;
  seat.activity.waiting = false;
  for (const auto& [group, count] : completed) seat.completed[group] = count;
}

std::vector<int> RankTable::missing() const {
  std::vector<int> out;
  for (int rank = 0; rank < size(); ++rank)
    if (seats_[size_t(rank)].state == State::empty) out.push_back(rank);
  return out;
}

std::vector<int> RankTable::everybody() const {
  std::vector<int> out(seats_.size());
  for (int rank = 0; rank < size(); ++rank) out[size_t(rank)] = rank;
  return out;
}

bool RankTable::all_left() const {
  return std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.state == State::left; });
}

std::string RankTable::who(int rank) const {
  const Member& member = seats_[size_t(rank)].member;
  return str("rank ", rank, " (pid ", member.pid, " on ", member.host, ")");
}

// Describes a call: "seq 9 of group tp (all_reduce f32 x 8, tag w1)". Leaves out the group if it is the world. For
// point-to-point messages, returns only the text that the rank reported.
std::string RankTable::place_of(const Activity& a) const {
  if (a.messages > 0) return a.collective;
  return str("seq ", a.completed + 1, a.group.empty() || a.group == "world" ? "" : " of group " + a.group,
             a.collective.empty() ? "" : " (" + a.collective + ")");
}

DistError RankTable::died(int rank) const {
  const Activity& a = seats_[size_t(rank)].activity;
  const std::string where = a.waiting         ? ", in " + place_of(a)
                            : a.group.empty() ? ", before its first collective"
                                              : str(", after seq ", a.completed);
  return {Fault::rank_failed, rank,
          str(who(rank), " died; it was last seen in step ", a.step, where, "; its output may say why")};
}

DistError RankTable::gone(int who, const std::vector<int>& ranks) const {
  const Activity& a = seats_[size_t(who)].activity;
  std::string after;
  for (const int rank : ranks) {
    const Seat& seat = seats_[size_t(rank)];
    const auto found = seat.completed.find(a.group);
    const std::string at = found == seat.completed.end() || found->second == 0 ? "before its first call there"
                                                                               : str("after seq ", found->second);
    if (after.empty()) after = at;
    else if (after != at) after = "before it";
  }
  return {Fault::rank_left, ranks.front(),
          str("rank ", who, " waits in ", place_of(a), "; ", named(ranks),
              ranks.size() == 1 ? " has left " : " have left ", after, "; all ranks must make the same calls")};
}

DistError RankTable::gone(int who, int rank) const {
  std::vector<int> ranks = left_behind(who);
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end())
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
  return gone(who, ranks);
}

DistError RankTable::gone_from(const std::string& what, int who, const std::vector<int>& ranks) const {
  return {Fault::rank_left, ranks.front(),
          str("rank ", who, " waits at ", what, "; ", named(ranks), ranks.size() == 1 ? " has left" : " have left",
              " the group in step ", seats_[size_t(ranks.front())].activity.step, "; all its ranks must call it")};
}

// True if the rank in this seat waits for another rank, and reported this at most two heartbeat intervals ago.
bool RankTable::waits(const Seat& seat, double now) const {
  return seat.state == State::seated && seat.activity.waiting && seat.activity.waits_for >= 0 &&
         now - seat.renewed <= 2 * heartbeat_;
}

// Returns the ranks that have left the job although `rank` needs them: they did not complete the collective that `rank`
// is in, or did not send or receive the message that `rank` waits for.
std::vector<int> RankTable::left_behind(int rank) const {
  const Activity& a = seats_[size_t(rank)].activity;
  std::vector<int> out;
  for (int other = 0; other < size(); ++other) {
    const Seat& seat = seats_[size_t(other)];
    if (other == rank || seat.state != State::left) continue;
    const auto found = seat.completed.find(a.group);
    const bool short_of_it = a.messages == 0 && found != seat.completed.end() && found->second <= a.completed;
    if (short_of_it || (other == a.waits_for && is_real(rank, seat))) out.push_back(other);
  }
  return out;
}

// True if `waiter` really waits for `peer`: by its last report, `peer` has neither completed the collective nor started
// the message that `waiter` waits for.
bool RankTable::is_real(int waiter, const Seat& peer) const {
  const Activity& a = seats_[size_t(waiter)].activity;
  if (a.messages == 0) {
    const auto found = peer.completed.find(a.group);
    return found == peer.completed.end() || found->second <= a.completed;
  }
  const auto& counts = a.is_send ? peer.activity.taken_from : peer.activity.sent_to;
  return count_for(counts, waiter) < a.messages;
}

std::optional<DistError> RankTable::silent(double now) const {
  for (int rank = 0; rank < size(); ++rank) {
    const Seat& seat = seats_[size_t(rank)];
    if (seat.state != State::seated || now - seat.heard <= 3 * heartbeat_) continue;
    const Activity& a = seat.activity;
    return DistError{Fault::rank_silent, rank,
                     str(who(rank), " is silent: no heartbeat for ", text_of(Seconds(now - seat.heard)),
                         " (stopped, swapped out, or cut off); it was in step ", a.step,
                         a.waiting         ? ", in " + place_of(a)
                         : a.group.empty() ? ""
                                           : str(", after seq ", a.completed),
                         "; look at this process and its machine")};
  }
  return std::nullopt;
}

// Finds deadlocks: follows the waits from every rank, and looks for a cycle in which nothing has moved for three
// heartbeat intervals. A cycle is a deadlock if all its ranks wait for messages, or are in different calls of one
// group, such as a broadcast from rank 0 and one from rank 1. In the same call, ranks just wait for the slowest one.
std::optional<DistError> RankTable::circle(double now) const {
  const auto next = [&](int rank) {
    const Seat& seat = seats_[size_t(rank)];
    const bool stands =
        waits(seat, now) && now - seat.waits_since >= 3 * heartbeat_ && seat.activity.waits_for < size();
    return stands && is_real(rank, seats_[size_t(seat.activity.waits_for)]) ? seat.activity.waits_for : -1;
  };
  for (int first = 0; first < size(); ++first) {
    std::vector<int> path{first};
    // Follow the waits only from the lowest rank of a cycle, so that each cycle is found once.
    for (int at = next(first); at > first && path.size() <= seats_.size(); at = next(at)) path.push_back(at);
    if (next(path.back()) != first) continue;
    const auto doing = [&](int rank) -> const Activity& { return seats_[size_t(rank)].activity; };
    const auto all = [&](auto&& holds) { return std::all_of(path.begin(), path.end(), holds); };
    const bool one_group = all([&](int rank) { return doing(rank).group == doing(first).group; }),
               one_call = all([&](int rank) { return doing(rank).collective == doing(first).collective; });
    if (!all([&](int rank) { return doing(rank).messages > 0; }) && (one_call || !one_group)) continue;
    std::string text = "deadlock: ";
    for (const int rank : path) {
      const Activity& a = doing(rank);
      if (a.messages == 0)
        text += str(rank == first ? "" : ", ", "rank ", rank, " waits in ", place_of(a), " for rank ", a.waits_for);
      else
        text += str(rank == first ? "" : ", ", "rank ", rank,
                    a.is_send ? " waits to send to rank " : " waits to receive from rank ", a.waits_for, " (",
                    tag_of(a.collective), ")");
    }
    return DistError{Fault::deadlock, -1, text + "; let one of these ranks make its calls in another order"};
  }
  return std::nullopt;
}

std::optional<DistError> RankTable::judge(double now) const {
  if (auto found = silent(now)) return found;
  for (int rank = 0; rank < size(); ++rank) {
    const Seat& seat = seats_[size_t(rank)];
    if (!waits(seat, now)) continue;
    const std::vector<int> ranks = left_behind(rank);
    // Data of a rank that has left may still be on the way: wait one heartbeat interval. But a rank that never started
    // this call has sent no data: wait only 0.1 s, in case more ranks are about to leave.
    const bool settled = std::any_of(ranks.begin(), ranks.end(), [&](int other) {
      const bool never_arrived = seat.activity.messages == 0 && is_real(rank, seats_[size_t(other)]);
      const double since =
          never_arrived ? seats_[size_t(other)].left_at : std::max(seats_[size_t(other)].left_at, seat.waits_since);
      return now - since >= (never_arrived ? std::min(heartbeat_, 0.1) : heartbeat_);
    });
    if (settled) return gone(rank, ranks);
  }
  return circle(now);
}

std::string RankTable::explain(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) continue;
    const Seat& seat = seats_[size_t(rank)];
    const Activity& a = seat.activity;
    text += str(text.empty() ? "" : "; ", "rank ", rank);
    if (seat.state == State::empty) text += " has not joined";
    else if (seat.state == State::left)
      text += a.group.empty() ? " has left" : str(" has left after seq ", a.completed);
    else if (a.waiting)
      text += str(a.waits_for >= 0 ? " waits in " : " is in ", place_of(a),
                  a.waits_for >= 0 ? str(" for rank ", a.waits_for) : "", ", step ", a.step);
    else if (a.group.empty()) text += str(" is in step ", a.step, ", in no collective yet");
    else
      text += str(" is between collectives, after seq ", a.completed, a.group == "world" ? "" : " of group " + a.group,
                  ", step ", a.step);
  }
  return text;
}

}  // namespace lockstep::dist
