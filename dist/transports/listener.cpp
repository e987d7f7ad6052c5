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

constexpr size_t max_visitors = 256;  // unauthenticated connections
constexpr int max_entries = 32;       // accepted in a row, before existing connections are served
constexpr std::chrono::seconds handshake_limit{5}, log_pause{60};

}  // namespace

struct Listener::Visitor {
  Fd fd;
  Clock::time_point deadline;
  Nonce challenge;
  std::string heard;
};

std::shared_ptr<Listener> Listener::of(Control& control) {
  static std::mutex mutex;
  static auto* listeners = new std::map<const Control*, std::weak_ptr<Listener>>;
  const std::lock_guard lock(mutex);
  std::erase_if(*listeners, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Listener>& known = (*listeners)[&control];
  std::shared_ptr<Listener> listener = known.lock();
  if (!listener) known = listener = std::shared_ptr<Listener>(new Listener(control));
  return listener;
}

Listener::Listener(Control& control)
    : host_(control.own_address()), token_(control.place().token), job_(control.place().job) {
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

Listener::~Listener() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

std::vector<Fd> Listener::claim(const std::string& purpose) {
  const std::lock_guard lock(mutex_);
  const auto found = admitted_.find(purpose);
  if (found == admitted_.end()) return {};
  for (const Fd& fd : found->second)
    if (!fd) return {};
  std::vector<Fd> all = std::move(found->second);
  admitted_.erase(found);
  return all;
}

void Listener::run() {
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
      std::fprintf(stderr, "[transport] accepts no connections: %s; start all ranks again\n", std::strerror(errno));
      return;
    }
    if (entries[0].revents) return;
    const auto now = Clock::now();
    for (size_t i = visitors.size(); i-- > 0;) {
      bool keep = true;
      if (entries[i + 2].revents) keep = listen_to(visitors[i]);
      if (keep && visitors[i].deadline <= now) {
        reject(visitors[i], "it did not prove the token within 5 s");
        keep = false;
      }
      if (!keep) visitors.erase(visitors.begin() + ptrdiff_t(i));
    }
    for (int i = 0; entries[1].revents && i < max_entries && enter(visitors); ++i) {}
  }
}

bool Listener::enter(std::vector<Visitor>& visitors) {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool exhausted = !fd && (errno == EMFILE || errno == ENFILE);
  if (!fd && !exhausted) return errno == EINTR || errno == ECONNABORTED;
  if (visitors.size() >= (exhausted ? size_t(1) : max_visitors)) {
    reject(visitors.front(), "too many unauthenticated connections");
    visitors.erase(visitors.begin());
  } else if (exhausted) {
    // This process has no descriptors left. The connection stays in the kernel's queue: retry a little later.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return false;
  }
  if (exhausted) return true;
  prepare(fd.get());
  Visitor visitor{
      .fd = std::move(fd), .deadline = Clock::now() + handshake_limit, .challenge = random_nonce(), .heard = {}};
  const std::string hello = handshake::hello(visitor.challenge);
  if (::send(visitor.fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == ssize_t(hello.size()))
    visitors.push_back(std::move(visitor));
  return true;
}

bool Listener::listen_to(Visitor& visitor) {
  char bytes[1024];
  // Read no byte beyond the answer to the challenge: the bytes after it belong to the channel.
  const size_t wanted = handshake::wanted(visitor.heard);
  const ssize_t n = ::recv(visitor.fd.get(), bytes, std::min(sizeof bytes, wanted), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    reject(visitor, "it closed the connection");
    return false;
  }
  visitor.heard.append(bytes, size_t(n));
  const size_t left = handshake::wanted(visitor.heard);
  if (left == handshake::too_long) {
    reject(visitor, "it does not speak Lockstep's protocol");
    return false;
  }
  if (left > 0) return true;
  const handshake::Answer answer = handshake::parse(visitor.heard);
  if (!same_proof(answer.proof, prove(token_, "rank", visitor.challenge, answer.number, answer.purpose))) {
    reject(visitor, "it does not know the token of this job");
    return false;
  }
  const handshake::Purpose purpose = handshake::parse_purpose(answer.purpose);
  if (purpose.job != job_ || purpose.stripes == 0 || purpose.stripe >= purpose.stripes) {
    reject(visitor, "it belongs to job \"" + purpose.job + "\", this is \"" + job_ + "\"");
    return false;
  }
  const std::string reply = handshake::reply(prove(token_, "store", visitor.challenge, answer.number, answer.purpose));
  if (::send(visitor.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) == ssize_t(reply.size()))
    admit(visitor, purpose.what, purpose.stripe, purpose.stripes);
  return false;
}

void Listener::admit(Visitor& visitor, const std::string& purpose, size_t stripe, size_t stripes) {
  const std::lock_guard lock(mutex_);
  std::vector<Fd>& all = admitted_[purpose];
  if (all.size() != stripes) all.resize(stripes);
  all[stripe] = std::move(visitor.fd);
}

void Listener::reject(const Visitor& visitor, const std::string& why) {
  const auto now = Clock::now();
  if (logged_ != Clock::time_point() && now - logged_ < log_pause) return;
  logged_ = now;
  std::fprintf(stderr, "[transport] dropped peer %s: %s; if it is a rank, see its output (logged once a minute)\n",
               peer_address(visitor.fd.get()).text().c_str(), why.c_str());
}

}  // namespace lockstep::dist
