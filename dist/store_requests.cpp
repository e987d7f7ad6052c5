// store_requests.cpp: the requests of ranks: keys, counters, barriers, reports, leaving. See store.h.
#include <algorithm>

#include "dist/store.h"

namespace lockstep::dist {
namespace {

constexpr size_t max_stored = size_t(256) << 20;  // bytes of all keys and values
constexpr size_t max_waiters = 1 << 16;

std::string too_many_waiters() {
  return str("[store] expected at most ", max_waiters,
             " waiting requests, got one more; wait for fewer keys and barriers at once");
}

Clock::time_point after(Clock::time_point now, double seconds) {
  return now + std::chrono::duration_cast<Clock::duration>(Seconds(std::min(seconds, 1e8)));
}

}  // namespace

void Store::send_error(Connection& connection, uint32_t request, const DistError& error) {
  Writer out;
  write_failure(out, error.fault, error.rank, error.what());
  send(connection, FrameKind::error, request, out.body);
}

void Store::handle_request(Connection& connection, const Frame& frame) {
  if (failure_ && frame.kind != FrameKind::leave) return;  // the rank has been told of the failure, or will be
  BodyReader in(frame.body);
  const int rank = connection.rank;
  switch (frame.kind) {
    case FrameKind::heartbeat:
    case FrameKind::activity: {
      const Activity activity = read_activity(in);
      in.end();
      rank_table_.doing(rank, activity, frame.kind == FrameKind::activity, attended_);
      return;
    }
    case FrameKind::set: {
      const std::string key = in.text(key_limit);
      const std::string value = in.text(value_limit);
      in.end();
      if (put(connection, frame.request, key, value)) send(connection, FrameKind::reply, frame.request, {});
      return;
    }
    case FrameKind::get:
    case FrameKind::try_get: {
      const std::string key = in.text(key_limit);
      const double timeout = frame.kind == FrameKind::get ? in.seconds() : 0;
      in.end();
      const auto found = values_.find(key);
      if (found != values_.end()) return send(connection, FrameKind::reply, frame.request, found->second);
      if (frame.kind == FrameKind::try_get) return send(connection, FrameKind::no_reply, frame.request, {});
      if (waiters_.size() >= max_waiters)
        return send_error(connection, frame.request, {Fault::refused, rank, too_many_waiters()});
      const auto now = Clock::now();
      waiters_.push_back({&connection, frame.request, key, {}, now, after(now, timeout)});
      return;
    }
    case FrameKind::add: {
      const std::string key = in.text(key_limit);
      const int64_t delta = in.i64();
      in.end();
      std::string text;
      try {
        text = std::to_string(added(key, values_.contains(key) ? values_[key] : "0", delta, rank));
      } catch (const DistError& error) { return send_error(connection, frame.request, error); }
      if (put(connection, frame.request, key, text)) send(connection, FrameKind::reply, frame.request, text);
      return;
    }
    case FrameKind::barrier: return handle_barrier(connection, frame);
    case FrameKind::cancel:
      in.end();
      waiters_.remove_if(
          [&](const Waiter& waiter) { return waiter.connection == &connection && waiter.request == frame.request; });
      return;
    case FrameKind::explain: {
      std::vector<int> ranks(in.count(4));
      for (int& other : ranks) other = int(in.u32());
      in.end();
      return send(connection, FrameKind::reply, frame.request, rank_table_.explain(ranks));
    }
    case FrameKind::report: return handle_report(connection, frame);
    case FrameKind::leave: {
      const Activity activity = read_activity(in);
      std::map<std::string, uint64_t> completed;
      for (uint32_t i = in.count(12); i > 0; --i) {
        const std::string group = in.text(1024);
        completed[group] = in.u64();
      }
      in.end();
      rank_table_.doing(rank, activity, false, attended_);
      rank_table_.left(rank, completed, attended_);
      send(connection, FrameKind::reply, frame.request, {});
      // Barriers that include this rank can no longer complete.
      for (const Waiter& waiter : waiters_) {
        if (std::find(waiter.ranks.begin(), waiter.ranks.end(), rank) == waiter.ranks.end()) continue;
        fail(rank_table_.gone_from("barrier '" + waiter.key + "'", waiter.connection->rank, {rank}));
        break;
      }
      return;
    }
    default:
      throw DistError(
          Fault::protocol, rank,
          str("expected a request, got a message of kind ", int(frame.kind), "; use one build on all ranks"));
  }
}

// Stores a value, and answers the ranks that wait for its key. When the store is full, sends an error to `connection`
// and returns false.
bool Store::put(Connection& connection, uint32_t request, const std::string& key, const std::string& value) {
  const auto found = values_.find(key);
  const size_t now = key.size() + value.size(), before = found == values_.end() ? 0 : key.size() + found->second.size();
  if (stored_ - before + now > max_stored) {
    send_error(connection, request,
               {Fault::refused, connection.rank,
                str("[store] is full: it holds at most ", max_stored >> 20,
                    " MiB of keys and values; keep large data in files or tensors")});
    return false;
  }
  stored_ += now - before;
  values_[key] = value;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (!it->ranks.empty() || it->key != key) {
      ++it;
      continue;
    }
    send(*it->connection, FrameKind::reply, it->request, value);
    it = waiters_.erase(it);
  }
  return true;
}

void Store::handle_barrier(Connection& connection, const Frame& frame) {
  BodyReader in(frame.body);
  const std::string name = in.text(key_limit);
  const double timeout = in.seconds();
  std::vector<int> ranks(in.count(4));
  for (int& rank : ranks) rank = int(in.u32());
  in.end();
  for (const int rank : ranks)
    if (rank < 0 || rank >= rank_table_.size())
      throw DistError(Fault::protocol, connection.rank,
                      str("expected ranks below ", rank_table_.size(), " at a barrier, got ", rank,
                          "; use one build on all ranks"));
  if (waiters_.size() >= max_waiters)
    return send_error(connection, frame.request, {Fault::refused, connection.rank, too_many_waiters()});
  for (const Waiter& waiter : waiters_) {
    if (waiter.ranks.empty() || waiter.key != name || waiter.ranks == ranks) continue;
    return fail(
        {Fault::mismatch, -1,
         str("ranks disagree on who meets at barrier '", name, "': rank ", waiter.connection->rank, " expects ",
             named(waiter.ranks), ", rank ", connection.rank, " expects ", named(ranks), "; pass the same ranks")});
  }
  std::vector<int> left;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(left),
               [&](int rank) { return rank_table_.has_left(rank); });
  if (!left.empty()) return fail(rank_table_.gone_from("barrier '" + name + "'", connection.rank, left));
  const auto now = Clock::now();
  waiters_.push_back({&connection, frame.request, name, ranks, now, after(now, timeout)});
  answer_barrier(name, ranks);
}

void Store::answer_barrier(const std::string& name, const std::vector<int>& ranks) {
  const auto here = [&](const Waiter& waiter) { return !waiter.ranks.empty() && waiter.key == name; };
  for (const int rank : ranks)
    if (std::none_of(waiters_.begin(), waiters_.end(),
                     [&](const Waiter& waiter) { return here(waiter) && waiter.connection->rank == rank; }))
      return;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (!here(*it)) {
      ++it;
      continue;
    }
    send(*it->connection, FrameKind::reply, it->request, {});
    it = waiters_.erase(it);
  }
}

void Store::handle_report(Connection& connection, const Frame& frame) {
  BodyReader in(frame.body);
  DistError said = read_failure(in);
  in.end();
  if (said.rank < -1 || said.rank >= rank_table_.size()) said.rank = -1;
  const int rank = said.rank;
  const DistError failure{said.fault, rank, str("[rank ", connection.rank, "] ", said.what())};
  const bool about_another =
      rank >= 0 && rank != connection.rank && (said.fault == Fault::rank_failed || said.fault == Fault::rank_silent);
  if (!about_another) return fail(failure);
  if (rank_table_.has_left(rank)) return fail(rank_table_.gone(connection.rank, rank));
  if (!held_)
    held_ = Held{failure, connection.rank,
                 Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(place_.heartbeat, Seconds(0.3)))};
}

}  // namespace lockstep::dist
