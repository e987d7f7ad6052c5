// Accepts and authenticates connections from other ranks, and keeps each until the channel that it belongs to takes it.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "dist/transports/handshake.h"
#include "dist/transports/tcp.h"

namespace lockstep::dist {
namespace {

constexpr size_t most_visitors = 256;  // unauthenticated connections
constexpr int most_entries = 32;       // accepted in a row, before existing connections are served
constexpr std::chrono::seconds patience{5}, log_pause{60};

}  // namespace

struct Door::Visitor {
  Fd fd;
  Clock::time_point deadline;
  Nonce challenge;
  std::string heard;
};

std::shared_ptr<Door> Door::of(Control& control) {
  static std::mutex mutex;
  static auto* doors = new std::map<const Control*, std::weak_ptr<Door>>;
  const std::lock_guard lock(mutex);
  std::erase_if(*doors, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Door>& known = (*doors)[&control];
  std::shared_ptr<Door> door = known.lock();
  if (!door) known = door = std::shared_ptr<Door>(new Door(control));
  return door;
}

Door::Door(Control& control) : host_(control.own_address()), token_(control.place().token), job_(control.place().job) {
  const SocketAddress address = resolve(host_, 0).front();
  LOCKSTEP_CHECK(address.is_loopback() || !token_.empty(), "[transport] expected a token to listen at ", host_,
                 ", which others can reach, got none; `lockstep run` makes one, or set LOCKSTEP_TOKEN to the same "
                 "secret on all ranks");
  listener_ = listen_at(address);
  port_ = local_address(listener_.get()).port();
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) check_descriptors(errno, "listening for data connections");
  LOCKSTEP_CHECK(wake_, "[transport] expected an eventfd, got: ", std::strerror(errno), "; free memory");
  thread_ = std::thread([this] { run(); });
}

Door::~Door() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

std::vector<Fd> Door::claim(const std::string& purpose) {
  const std::lock_guard lock(mutex_);
  const auto found = admitted_.find(purpose);
  if (found == admitted_.end()) return {};
  for (const Fd& fd : found->second)
    if (!fd) return {};
  std::vector<Fd> all = std::move(found->second);
  admitted_.erase(found);
  return all;
}

void Door::run() {
  std::vector<Visitor> visitors;
  std::vector<pollfd> entries;
  for (;;) {
    entries.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const Visitor& v : visitors) entries.push_back({v.fd.get(), POLLIN, 0});
    int wait = -1;
    if (!visitors.empty())
      wait = int(std::max<int64_t>(
          0, std::chrono::ceil<std::chrono::milliseconds>(visitors.front().deadline - Clock::now()).count()));
    if (::poll(entries.data(), entries.size(), wait) < 0 && errno != EINTR) {
      std::fprintf(stderr, "[transport] data connections are no longer accepted: %s\n", std::strerror(errno));
      return;
    }
    if (entries[0].revents) return;
    const auto now = Clock::now();
    for (size_t i = visitors.size(); i-- > 0;) {
      bool keep = true;
      if (entries[i + 2].revents) keep = listen_to(visitors[i]);
      if (keep && visitors[i].deadline <= now) {
        turn_away(visitors[i], "it did not prove the token within 5 s");
        keep = false;
      }
      if (!keep) visitors.erase(visitors.begin() + ptrdiff_t(i));
    }
    for (int i = 0; entries[1].revents && i < most_entries && enter(visitors); ++i) {}
  }
}

bool Door::enter(std::vector<Visitor>& visitors) {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool exhausted = !fd && (errno == EMFILE || errno == ENFILE);
  if (!fd && !exhausted) return errno == EINTR || errno == ECONNABORTED;
  if (visitors.size() >= (exhausted ? size_t(1) : most_visitors)) {
    turn_away(visitors.front(), "too many unauthenticated connections");
    visitors.erase(visitors.begin());
  } else if (exhausted) {
    // This process has no descriptors left. The connection stays in the kernel's queue: retry a little later.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return false;
  }
  if (exhausted) return true;
  prepare(fd.get());
  Visitor visitor{.fd = std::move(fd), .deadline = Clock::now() + patience, .challenge = random_nonce(), .heard = {}};
  const std::string hello = handshake::hello(visitor.challenge);
  if (::send(visitor.fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == ssize_t(hello.size()))
    visitors.push_back(std::move(visitor));
  return true;
}

bool Door::listen_to(Visitor& visitor) {
  char bytes[1024];
  // Read no byte beyond the answer to the challenge: the bytes after it belong to the channel.
  const size_t wanted = handshake::wanted(visitor.heard);
  const ssize_t n = ::recv(visitor.fd.get(), bytes, std::min(sizeof bytes, wanted), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    turn_away(visitor, "it closed the connection");
    return false;
  }
  visitor.heard.append(bytes, size_t(n));
  const size_t left = handshake::wanted(visitor.heard);
  if (left == handshake::too_long) {
    turn_away(visitor, "it does not speak Lockstep's protocol");
    return false;
  }
  if (left > 0) return true;
  const handshake::Answer answer = handshake::parse(visitor.heard);
  if (!same_proof(answer.proof, prove(token_, "rank", visitor.challenge, answer.number, answer.purpose))) {
    turn_away(visitor, "it does not know the token of this job");
    return false;
  }
  const handshake::Purpose purpose = handshake::parse_purpose(answer.purpose);
  if (purpose.job != job_ || purpose.stripes == 0 || purpose.stripe >= purpose.stripes) {
    turn_away(visitor, "it belongs to job \"" + purpose.job + "\", this is \"" + job_ + "\"");
    return false;
  }
  const std::string reply = handshake::reply(prove(token_, "store", visitor.challenge, answer.number, answer.purpose));
  if (::send(visitor.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) == ssize_t(reply.size()))
    admit(visitor, purpose.what, purpose.stripe, purpose.stripes);
  return false;
}

void Door::admit(Visitor& visitor, const std::string& purpose, size_t stripe, size_t stripes) {
  const std::lock_guard lock(mutex_);
  std::vector<Fd>& all = admitted_[purpose];
  if (all.size() != stripes) all.resize(stripes);
  all[stripe] = std::move(visitor.fd);
}

void Door::turn_away(const Visitor& visitor, const std::string& why) {
  const auto now = Clock::now();
  if (logged_ != Clock::time_point() && now - logged_ < log_pause) return;
  logged_ = now;
  std::fprintf(stderr, "[transport] dropped a connection from %s: %s (logged at most once a minute)\n",
               peer_address(visitor.fd.get()).text().c_str(), why.c_str());
}

}  // namespace lockstep::dist
