// The store's poll loop, its connections and failures. Joining: store_join.cpp. Requests: store_requests.cpp.
#include "dist/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace lockstep::dist {
namespace {

// Limit of unauthenticated connections; the oldest is dropped when one more connects. A rank proves itself long before
// that many other connections arrive, even during a flood.
constexpr int64_t max_strangers = 256;
constexpr int max_accepts = 64;                  // accepted in a row, before existing connections are served
constexpr size_t max_unsent = size_t(64) << 20;  // most bytes queued for a rank; above, it counts as not reading
constexpr std::chrono::seconds stranger_time{5};
constexpr std::chrono::seconds last_words_time{2};

// The number of unauthenticated connections that the limit of open files allows besides one connection for each rank.
// Error if this limit is too low even for the ranks.
int64_t room_for_strangers(int world_size) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return max_strangers;
  std::error_code ignored;
  const int64_t open = std::distance(std::filesystem::directory_iterator("/proc/self/fd", ignored), {});
  const int64_t needed = open + world_size + 16;
  LOCKSTEP_CHECK(int64_t(limit.rlim_cur) >= needed, "[control] rank 0 needs about ", needed,
                 " open files for a world of ", world_size, ", its limit is ", limit.rlim_cur,
                 ": raise it with ulimit -n");
  return std::min(max_strangers, int64_t(limit.rlim_cur) - needed + 8);
}

}  // namespace

Store::Store(const Rendezvous& rendezvous, const Member& host)
    : place_(rendezvous), host_(host), rank_table_(rendezvous.world_size, rendezvous.heartbeat.count()) {
  if (place_.listener >= 0) {
    listener_ = Fd(place_.listener);
    prepare(listener_.get());
  } else {
    listener_ = listen_at(resolve(place_.address, place_.port).front());
  }
  const SocketAddress at = local_address(listener_.get());
  LOCKSTEP_CHECK(at.length > 0, "[rendezvous] expected a listening socket in `listener`, got descriptor ",
                 place_.listener, "; pass one of open_listener()");
  LOCKSTEP_CHECK(
      at.is_loopback() || !place_.token.empty(), "[rendezvous] expected a token to listen at ", at.text(),
      ", got none: anybody who can reach that address could join. ",
      "`lockstep run` makes one; else set LOCKSTEP_TOKEN to the same secret on all ranks (openssl rand -hex 32)");
  address_ = at.host();
  port_ = at.port();
  strangers_ = room_for_strangers(place_.world_size);
  wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_) check_descriptors(errno, "starting the store");
  LOCKSTEP_CHECK(wake_, "[control] cannot make an eventfd: ", std::strerror(errno), "; free memory");
  started_ = last_tick_ = next_heartbeat_ = accept_again_ = Clock::now();
  rendezvous_waited_ = place_.timeout;
  rendezvous_deadline_ = started_ + std::chrono::duration_cast<Clock::duration>(place_.timeout);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    lockstep::fail(str("[control] cannot start the store's thread: ", error.what(),
                       ": the limit of processes and threads is reached; raise it with ulimit -u"));
  }
}

Store::~Store() { finish(); }

void Store::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (!finishing_) finishing_ = Clock::now();
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void Store::serve() {
  const auto tick = std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(place_.heartbeat / 4),
                               std::chrono::milliseconds(5), std::chrono::milliseconds(100));
  std::vector<pollfd> polled;
  std::vector<Connection*> order;
  for (;;) {
    polled.assign({{wake_.get(), POLLIN, 0}, {Clock::now() < accept_again_ ? -1 : listener_.get(), POLLIN, 0}});
    order.clear();
    for (Connection& connection : connections_) {
      polled.push_back({connection.fd.get(), short(POLLIN | (connection.out.empty() ? 0 : POLLOUT)), 0});
      order.push_back(&connection);
    }
    ::poll(polled.data(), polled.size(), int(tick.count()));
    if (polled[0].revents) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
    }
    const auto attend = [&](bool ranks) {
      for (size_t i = 0; i < order.size(); ++i) {
        if ((order[i]->rank >= 0) != ranks) continue;
        if (polled[i + 2].revents & POLLOUT) order[i]->out.flush(order[i]->fd.get());
        if (polled[i + 2].revents & ~POLLOUT) read(*order[i]);
      }
    };
    attend(true);  // first the connections of ranks
    expire();
    attend(false);
    if (polled[1].revents) accept_some();
    // Handle closed connections only after all received data, which may say that the rank has left.
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (!it->dead) {
        ++it;
        continue;
      }
      lost(*it);
      waiters_.remove_if([&](const Waiter& waiter) { return waiter.connection == &*it; });
      it = connections_.erase(it);
    }
    if (may_stop()) return;
  }
}

// Checks deadlines, looks for silent ranks, and sends heartbeats when they are due.
void Store::expire() {
  const auto now = Clock::now();
  const double passed = Seconds(now - last_tick_).count();
  attended_ += std::min(passed, std::max(0.05, place_.heartbeat.count() / 2));
  last_tick_ = now;
  check_deadlines();
  check_ranks();
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + std::chrono::duration_cast<Clock::duration>(std::min(place_.heartbeat / 2, Seconds(1)));
    for (Connection& connection : connections_)
      if (connection.state == State::seated) send(connection, FrameKind::heartbeat, 0, {});
  }
}

void Store::accept_some() {
  const auto is_stranger = [](const Connection& c) { return c.state != State::seated && !c.dead; };
  int64_t strangers = std::count_if(connections_.begin(), connections_.end(), is_stranger);
  for (int i = 0; i < max_accepts; ++i) {
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    const int fd = ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);
    const int problem = errno;
    if (fd < 0 && (problem == EINTR || problem == ECONNABORTED)) continue;
    const bool exhausted = fd < 0 && (problem == EMFILE || problem == ENFILE);
    if (exhausted || (fd >= 0 && strangers >= strangers_)) {
      const auto oldest = std::find_if(connections_.begin(), connections_.end(), is_stranger);
      if (oldest != connections_.end()) {
        log(str("dropped a connection from ", oldest->peer.host(),
                " that had not authenticated: too many are open; keep other programs off this port"));
        connections_.erase(oldest);  // unauthenticated, so no request of it waits for an answer
        --strangers;
        if (exhausted) continue;
      } else if (exhausted) {  // the program itself has used up its file descriptors
        accept_again_ = Clock::now() + std::chrono::milliseconds(200);
        try {
          check_descriptors(problem, "accepting a connection");
        } catch (const Error& error) { log(error.what()); }
        return;
      }
    }
    if (fd < 0) return;
    ++strangers;
    Connection& connection = connections_.emplace_back();
    connection.fd = Fd(fd);
    prepare(fd);
    connection.peer = peer;
    connection.deadline = Clock::now() + stranger_time;
    connection.challenge = random_nonce();
    send(connection, FrameKind::challenge, 0,
         Writer().u32(wire_protocol).bytes(connection.challenge.data(), connection.challenge.size()).body);
  }
}

void Store::read(Connection& connection) {
  char buffer[1 << 16];
  // Read only a few buffers in a row, and one small one from an unauthenticated connection, so others get their turn.
  const bool stranger = connection.state == State::greeted || connection.state == State::closing;
  const size_t room = stranger ? stranger_limit : sizeof buffer;
  for (int i = 0; i < (stranger ? 1 : 16) && !connection.dead; ++i) {
    const ssize_t got = ::recv(connection.fd.get(), buffer, room, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      connection.dead = true;
      return;
    }
    if (connection.state == State::closing) continue;
    if (connection.rank >= 0) rank_table_.heard(connection.rank, attended_);
    try {
      connection.in.push(buffer, size_t(got));
      while (connection.state != State::closing && !connection.dead) {
        const auto frame = connection.in.next();
        if (!frame) break;
        handle(connection, *frame);
      }
    } catch (const DistError& error) {  // the peer sent an invalid message
      if (connection.state == State::seated) {
        fail({Fault::protocol, connection.rank,
              str(rank_table_.who(connection.rank),
                  " sent a message that the store cannot read; use one build on all ranks: ", error.what())});
        connection.state = State::closing;  // close once the rank has read the failure
        connection.deadline = Clock::now() + last_words_time;
      } else {
        log(str("dropped a connection from ", connection.peer.host(), ": ", error.what()));
        connection.dead = true;
      }
    } catch (const std::exception& error) {  // out of memory
      if (connection.rank >= 0)
        fail({Fault::rank_failed, 0, str("the store (rank 0) failed: ", error.what(), "; free memory there")});
      connection.dead = true;
    }
  }
}

void Store::handle(Connection& connection, const Frame& frame) {
  switch (connection.state) {
    case State::greeted: return handle_stranger(connection, frame);
    case State::proved: return handle_join(connection, frame);
    case State::seated: return handle_request(connection, frame);
    case State::closing: return;
  }
}

void Store::refuse(Connection& connection, const std::string& why, bool taken) {
  send(connection, FrameKind::refused, 0, Writer().u8(taken).text(why).body);
  connection.state = State::closing;  // stays open until the peer has read the refusal and closes
  connection.deadline = Clock::now() + std::chrono::seconds(1);
}

void Store::send(Connection& connection, FrameKind kind, uint32_t request, const std::string& body) {
  if (connection.dead) return;
  connection.out.send(connection.fd.get(), encode(kind, request, body));
  if (connection.out.size() > max_unsent) {
    log(str("rank ", connection.rank, " does not read its replies; see its output"));
    connection.dead = true;
  }
}

// Handles the loss of a rank's connection. Before the job has begun, the rank may join again. Later, the job fails.
void Store::lost(Connection& connection) {
  const int rank = connection.rank;
  if (rank < 0 || connection.state != State::seated || rank_table_.has_left(rank)) return;
  if (!begun_) return rank_table_.stand_up(rank);
  if (!failure_) fail(rank_table_.died(rank));
}

void Store::fail(const DistError& failure) {
  if (failure_) return;
  failure_ = failure;
  held_.reset();
  waiters_.clear();
  Writer out;
  write_failure(out, failure.fault, failure.rank, failure.what());
  for (Connection& connection : connections_)
    if (connection.state == State::seated) send(connection, FrameKind::failure, 0, out.body);
}

void Store::check_deadlines() {
  const auto now = Clock::now();
  for (Connection& connection : connections_) {
    if (connection.state == State::seated || connection.dead || now < connection.deadline) continue;
    if (connection.state == State::greeted)
      log(str("dropped a connection from ", connection.peer.host(), " that did not authenticate within ",
              stranger_time.count(), " s; if it is a rank, see its output"));
    connection.dead = true;
  }
  if (!begun_ && !failure_ && now >= rendezvous_deadline_)
    fail({Fault::timeout, -1,
          str("[rendezvous] waited ", text_of(rendezvous_waited_), "; missing ranks: ", text_of(rank_table_.missing()),
              " (of ", text_of(rank_table_.everybody()), "); start them, or see their output")});
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (now < it->deadline) {
      ++it;
      continue;
    }
    const Waiter waiter = *it;
    it = waiters_.erase(it);
    if (waiter.ranks.empty()) {
      send_error(*waiter.connection, waiter.request,
                 {Fault::timeout, -1,
                  str("[store] waited ", text_of(waiter.deadline - waiter.started), " for key '", waiter.key,
                      "', which nobody has set; a rank must call set(), or this one wait longer")});
      continue;
    }
    std::vector<int> missing;
    for (const int rank : waiter.ranks) {
      const auto same = [&](const Waiter& other) { return other.key == waiter.key && other.connection->rank == rank; };
      if (rank != waiter.connection->rank && std::none_of(waiters_.begin(), waiters_.end(), same))
        missing.push_back(rank);
    }
    const std::string doing = rank_table_.explain(missing);
    send_error(*waiter.connection, waiter.request,
               {Fault::timeout, missing.empty() ? -1 : missing.front(),
                str("[barrier '", waiter.key, "'] waited ", text_of(waiter.deadline - waiter.started),
                    "; missing ranks: ", text_of(missing), " (of ", text_of(waiter.ranks), "): ", doing,
                    "; make this call on all of them, or raise its timeout")});
  }
}

void Store::check_ranks() {
  if (failure_ || !begun_) return;
  if (held_ && rank_table_.has_left(held_->failure.rank))
    return fail(rank_table_.gone(held_->reporter, held_->failure.rank));
  if (held_ && Clock::now() >= held_->until) return fail(DistError(held_->failure));
  if (const auto found = rank_table_.judge(attended_)) fail(*found);
}

// Prints at most one line a minute of each kind, however many connections cause it.
void Store::log(const std::string& what) {
  const std::string kind = what.substr(0, what.find(" from "));
  auto& [last, hidden] = logged_[kind];
  const auto now = Clock::now();
  if (last != Clock::time_point() && now - last < std::chrono::minutes(1)) {
    ++hidden;
    return;
  }
  std::fprintf(stderr, "[lockstep] store at %s: %s%s\n", endpoint(address_, port_).c_str(), what.c_str(),
               hidden ? str(" (and ", hidden, " more in the last minutes)").c_str() : "");
  last = now;
  hidden = 0;
  if (logged_.size() > 64) logged_.clear();
}

bool Store::may_stop() {
  const std::lock_guard lock(mutex_);
  if (!finishing_) return false;
  const auto now = Clock::now();
  const bool someone = std::any_of(connections_.begin(), connections_.end(),
                                   [](const Connection& c) { return c.state == State::seated; });
  if (!begun_ && !failure_) return true;  // rank 0 itself gave up before the job began
  if (failure_ || rank_table_.all_left()) return !someone || now - *finishing_ > last_words_time;
  if (now - *finishing_ > place_.timeout) {
    std::vector<int> others;
    for (const int rank : rank_table_.everybody())
      if (!rank_table_.has_left(rank)) others.push_back(rank);
    fail({Fault::rank_left, 0,
          str("rank 0, which hosts the store, has left and waited ", text_of(place_.timeout), " for ", named(others),
              " to leave as well; see their output")});
    finishing_ = now;
  }
  return false;
}

}  // namespace lockstep::dist
