// tcp_control.cpp: a rank's connection to the store, and the thread that serves it. See tcp_control.h.
#include "dist/tcp_control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace lockstep::dist {
namespace {

constexpr Seconds answer_time{5};  // the store must answer within a request's timeout + three heartbeats + this time

}  // namespace

TcpControl::TcpControl(Rendezvous place, Seat seat, std::unique_ptr<Store> store)
    : place_(std::move(place)),
      store_name_(std::move(seat.store)),
      fd_(std::move(seat.fd)),
      in_(std::move(seat.in)),
      store_(std::move(store)) {
  place_.heartbeat = seat.heartbeat;
  own_address_ = place_.interface.empty() ? local_address(fd_.get()).host() : address_on(place_.interface);
  wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_) check_descriptors(errno, "joining");
  LOCKSTEP_CHECK(wake_, "[control] cannot make an eventfd: ", std::strerror(errno), "; free memory");
  calls_.resize(1);
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::system_error& error) {
    fail(str("[control] cannot start the heartbeat's thread: ", error.what(),
             ": the limit of processes and threads is reached; raise it with ulimit -u"));
  }
}

TcpControl::~TcpControl() {
  if (!maker_.is_here()) {  // in a forked copy, the thread and the connection belong to the parent
    (void)thread_.release();
    (void)store_.release();
    return;
  }
  close();
}

void TcpControl::close() {
  if (!maker_.is_here()) return;
  leave();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  if (thread_ && thread_->joinable()) thread_->join();
  {
    const std::lock_guard lock(mutex_);
    fd_.close();
  }
  if (store_) store_->finish();
}

void TcpControl::check_key(const std::string& key) const {
  LOCKSTEP_CHECK(key.size() <= key_limit, "[store] expected a key of at most ", key_limit, " bytes, got one of ",
                 key.size(), "; shorten it");
}

// Sends a request and returns the reply. Throws if the job has failed, or if the store does not answer in time. The
// store must answer within `timeout`; this rank waits a little longer.
Frame TcpControl::request(FrameKind kind, const std::string& body, Seconds timeout) {
  LOCKSTEP_CHECK(maker_.is_here(), "[control] expected a call of the process that joined the job, got one of a child ",
                 "that it forked: the connection is the parent's; use spawn()");
  // Send the current activity first: error messages of other ranks quote it if this rank is missing or dies now.
  const std::string doing =
      kind == FrameKind::barrier || kind == FrameKind::explain ? encode(FrameKind::heartbeat, 0, activity_body()) : "";
  std::unique_lock lock(mutex_);
  if (failure_) throw DistError(*failure_);
  LOCKSTEP_CHECK(!left_, "[control] expected a rank that is in the job, got a call after leave(); call it earlier");
  const uint32_t number = ++requests_;
  Reply reply;
  waiting_[number] = &reply;
  send_locked(doing + encode(kind, number, body));
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, Seconds(1e8)) +
                                                                                3 * place_.heartbeat + answer_time);
  changed_.wait_until(lock, limit, [&] { return reply.done || failure_; });
  waiting_.erase(number);
  if (!reply.done && failure_) throw DistError(*failure_);
  if (!reply.done) {
    send_locked(encode(FrameKind::cancel, number, {}));
    throw DistError(
        Fault::timeout, 0,
        str("[control] the store at ", endpoint(place_.address, place_.port), " did not answer within ",
            text_of(timeout + 3 * place_.heartbeat + answer_time), "; see the output of rank 0, which hosts it"));
  }
  if (reply.frame.kind == FrameKind::error) {
    BodyReader in(reply.frame.body);
    throw read_failure(in);
  }
  return std::move(reply.frame);
}

void TcpControl::send_locked(const std::string& bytes) {
  out_.send(fd_.get(), bytes);
  if (out_.empty()) return;
  const uint64_t one = 1;  // wakes the thread, which sends the rest when the socket accepts more
  (void)!::write(wake_.get(), &one, sizeof one);
}

void TcpControl::set(const std::string& key, const std::string& value) {
  check_key(key);
  LOCKSTEP_CHECK(value.size() <= value_limit, "[store] expected a value of at most ", value_limit, " bytes for key '",
                 key, "', got ", value.size());
  request(FrameKind::set, Writer().text(key).text(value).body, {});
}

std::string TcpControl::get(const std::string& key, Seconds timeout) {
  check_key(key);
  LOCKSTEP_CHECK(timeout.count() >= 0, "[store] expected a timeout >= 0 for key '", key, "', got ", timeout.count());
  return request(FrameKind::get, Writer().text(key).seconds(std::min(timeout.count(), 1e8)).body, timeout).body;
}

std::optional<std::string> TcpControl::try_get(const std::string& key) {
  check_key(key);
  Frame frame = request(FrameKind::try_get, Writer().text(key).body, {});
  if (frame.kind == FrameKind::no_reply) return std::nullopt;
  return std::move(frame.body);
}

int64_t TcpControl::add(const std::string& key, int64_t delta) {
  check_key(key);
  const Frame frame = request(FrameKind::add, Writer().text(key).i64(delta).body, {});
  int64_t value = 0;
  std::from_chars(frame.body.data(), frame.body.data() + frame.body.size(), value);
  return value;
}

void TcpControl::barrier(const std::string& name, const std::vector<int>& world_ranks, Seconds timeout) {
  check_key(name);
  LOCKSTEP_CHECK(timeout.count() >= 0, "[barrier '", name, "'] expected a timeout >= 0, got ", timeout.count());
  LOCKSTEP_CHECK(std::find(world_ranks.begin(), world_ranks.end(), place_.rank) != world_ranks.end(), "[barrier '",
                 name, "'] expected to be called by one of ", named(world_ranks), ", got rank ", place_.rank);
  for (const int rank : world_ranks)
    LOCKSTEP_CHECK(rank >= 0 && rank < place_.world_size, "[barrier '", name, "'] expected ranks from 0 to ",
                   place_.world_size - 1, ", got ", rank);
  Writer out;
  out.text(name).seconds(std::min(timeout.count(), 1e8)).u32(uint32_t(world_ranks.size()));
  for (const int rank : world_ranks) out.u32(uint32_t(rank));
  request(FrameKind::barrier, out.body, timeout);
}

void TcpControl::raise() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw DistError(*failure_);
  fail("[control] raise() expected a failure, got none: check failed() first");
}

DistError TcpControl::report(Fault fault, int rank, const std::string& message) {
  const DistError ours{fault, rank, str("[rank ", place_.rank, "] ", message)};
  if (!maker_.is_here()) return ours;
  const std::string doing = activity_body();
  std::unique_lock lock(mutex_);
  if (failure_) return *failure_;
  if (left_) return ours;
  Writer out;
  write_failure(out, fault, rank, message);
  send_locked(encode(FrameKind::heartbeat, 0, doing));
  send_locked(encode(FrameKind::report, 0, out.body));
  changed_.wait_for(lock, 3 * place_.heartbeat + answer_time, [&] { return failure_.has_value(); });
  if (!failure_) fail_locked(ours);
  return *failure_;
}

TcpControl::Call& TcpControl::call_of_this_thread() {
  const auto self = std::this_thread::get_id();
  size_t free = calls_.size();
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].thread == self) return reported_call_ = i, calls_[i];
    if (!calls_[i].activity.waiting && i != reported_call_) free = i;
  }
  if (calls_.size() == 1 && calls_[0].thread == std::thread::id()) free = 0;
  if (free == calls_.size()) calls_.emplace_back();
  calls_[free] = Call{self, {}};
  return reported_call_ = free, calls_[free];
}

void TcpControl::begin(const Activity& activity) {
  const std::lock_guard lock(activity_mutex_);
  Call& call = call_of_this_thread();
  const bool other_group = !call.completed || call.activity.group != activity.group;
  call.activity = activity;
  call.activity.waiting = true;
  call.activity.waits_for = -1;
  if (other_group) call.completed = &completed_[activity.group];
  *call.completed = activity.completed;
}

void TcpControl::end() {
  const std::lock_guard lock(activity_mutex_);
  Call& call = call_of_this_thread();
  call.activity.waiting = false;
  call.activity.waits_for = -1;
  if (call.activity.is_collective) ++call.activity.completed;
  if (call.completed) *call.completed = call.activity.completed;
  for (size_t i = 0; i < calls_.size(); ++i)
    if (calls_[i].activity.waiting) reported_call_ = i;
}

void TcpControl::waits(int peer, uint64_t messages, bool is_send) {
  {
    const std::lock_guard lock(activity_mutex_);
    Activity& activity = call_of_this_thread().activity;
    activity.waits_for = peer;
    activity.messages = messages;
    activity.is_send = is_send;
  }
  const std::string body = activity_body();
  const std::lock_guard lock(mutex_);
  if (!failure_ && !left_) send_locked(encode(FrameKind::activity, 0, body));
}

Activity TcpControl::activity_now() {
  const std::lock_guard lock(activity_mutex_);
  Activity activity = calls_[reported_call_].activity;
  activity.step = std::max(activity.step, step());
  return activity;
}

std::string TcpControl::activity_body() {
  Writer out;
  write_activity(out, activity_now());
  return std::move(out.body);
}

std::string TcpControl::explain(const std::vector<int>& world_ranks) {
  Writer out;
  out.u32(uint32_t(world_ranks.size()));
  for (const int rank : world_ranks) out.u32(uint32_t(rank));
  try {
    return request(FrameKind::explain, out.body, {}).body;
  } catch (const Error& error) {  // do not throw: that would hide the error that is being explained
    return error.what();
  }
}

void TcpControl::leave() {
  if (!maker_.is_here()) return;
  Writer out;
  write_activity(out, activity_now());
  {
    const std::lock_guard lock(activity_mutex_);
    out.u32(uint32_t(completed_.size()));
    for (const auto& [group, count] : completed_) out.text(std::string_view(group).substr(0, 1024)).u64(count);
  }
  {
    const std::lock_guard lock(mutex_);
    if (left_ || failure_) return;
  }
  try {
    request(FrameKind::leave, out.body, {});
  } catch (const Error&) {  // the job has failed, so there is nothing to leave
  }
  const std::lock_guard lock(mutex_);
  left_ = true;
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void TcpControl::fail_locked(const DistError& failure) {
  if (failure_) return;
  failure_ = failure;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void TcpControl::run() {
  const auto pause = std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(place_.heartbeat / 4),
                                std::chrono::milliseconds(5), std::chrono::milliseconds(250));
  const auto usual = std::chrono::duration_cast<Clock::duration>(std::min(place_.heartbeat / 2, Seconds(1)));
  const auto started = Clock::now();
  auto last = started, next_heartbeat = started;
  double attended = 0, heard = 0;  // in seconds, without the time in which this process was stopped
  for (;;) {
    pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {fd_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (!out_.empty()) polled[1].events |= POLLOUT;
    }
    // A young job sends heartbeats more often, so that the last known activity is recent compared with the job's age.
    const auto pace = std::min(usual, std::max<Clock::duration>((last - started) / 4, std::chrono::milliseconds(10)));
    ::poll(polled, 2, int(std::min(pause, std::chrono::ceil<std::chrono::milliseconds>(pace)).count()));
    if (polled[0].revents) {
      uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
    }
    const auto now = Clock::now();
    attended += std::min(Seconds(now - last).count(), std::max(0.05, place_.heartbeat.count() / 2));
    last = now;
    const bool open = (polled[1].revents & ~POLLOUT) == 0 || read_all();
    if (polled[1].revents & ~POLLOUT) heard = attended;
    const std::string doing = activity_body();
    const std::lock_guard lock(mutex_);
    if (stopping_ || left_) return;
    if (!open) {
      if (!failure_)
        fail_locked({Fault::store_lost, 0,
                     str("the store at ", endpoint(place_.address, place_.port), " is lost: ", store_name_,
                         " died or is cut off; see its output")});
      return;
    }
    if (failure_) continue;  // keep reading until the store closes
    if (attended - heard > 3 * place_.heartbeat.count()) {
      fail_locked({Fault::rank_silent, 0,
                   str(store_name_, ", which hosts the store, is silent: no heartbeat for ",
                       text_of(Seconds(attended - heard)), " (stopped, swapped out, or cut off); see its output")});
      Writer out;
      write_failure(out, Fault::rank_silent, 0, failure_->what());
      send_locked(encode(FrameKind::report, 0, out.body));
      ::shutdown(fd_.get(), SHUT_WR);
      continue;
    }
    if (now >= next_heartbeat) {
      next_heartbeat = now + pace;
      if (out_.empty()) send_locked(encode(FrameKind::heartbeat, 0, doing));  // queued data is a sign of life too
    }
    out_.flush(fd_.get());
  }
}

// Handles received data. Returns false when the connection has ended.
bool TcpControl::read_all() {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return false;
    try {
      in_.push(buffer, size_t(got));
      while (const auto frame = in_.next()) take(*frame);
    } catch (const DistError& error) {
      const std::lock_guard lock(mutex_);
      fail_locked({Fault::protocol, 0,
                   str("the store at ", endpoint(place_.address, place_.port),
                       " sent a message that this rank cannot read; use one build on all ranks: ", error.what())});
      return false;
    }
  }
}

void TcpControl::take(const Frame& frame) {
  if (frame.kind == FrameKind::heartbeat) return;
  if (frame.kind == FrameKind::failure) {
    BodyReader in(frame.body);
    const std::lock_guard lock(mutex_);
    fail_locked(read_failure(in));
    out_.clear();
    ::shutdown(fd_.get(), SHUT_WR);  // tells the store that the message has arrived
    return;
  }
  if (frame.kind != FrameKind::reply && frame.kind != FrameKind::no_reply && frame.kind != FrameKind::error)
    throw DistError(Fault::protocol, 0,
                    str("expected an answer, got a message of kind ", int(frame.kind), "; use one build on all ranks"));
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find(frame.request);
  if (found == waiting_.end()) return;  // the caller of request() no longer waits
  *found->second = {true, frame};
  changed_.notify_all();
}

}  // namespace lockstep::dist
