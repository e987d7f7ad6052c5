// A TCP proxy that injects faults. See proxy.h.
#include "tests/dist/proxy.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <random>
#include <thread>
#include <vector>

#include "dist/control.h"
#include "dist/net.h"

using namespace lockstep::dist;

struct Proxy::State {
  struct Side {
    Fd fd;
    std::list<std::pair<Clock::time_point, std::string>> out;  // not yet written to fd, and when it is due
    bool ended = false, is_shut = false;                       // ended: the peer sends no more
  };
  struct Link {
    std::array<Side, 2> sides;  // the caller's and the target's
    int64_t passed = 0, from_caller = 0;
    bool over = false;
  };

  std::string host;
  int target_port = 0, port = 0;
  ProxyFaults faults;
  Fd listener;
  std::mt19937_64 random;
  std::list<Link> links;
  std::atomic<int> arrived{0};
  std::atomic<bool> stop{false}, cut{false}, hold{false};
  std::thread thread;

  static void reset(Fd& fd) {
    const linger now{1, 0};  // makes close() send a reset
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    fd.close();
  }
  static void reset(Link& link) {
    for (Side& side : link.sides) reset(side.fd);
    link.over = true;
  }

  void accept_one() {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    prepare(fd.get());
    if (++arrived <= faults.reset_first) return reset(fd);
    int problem = 0;
    Fd target = connect_to(resolve(host, target_port).front(), Clock::now() + std::chrono::seconds(5), problem);
    if (!target) return reset(fd);
    Link& link = links.emplace_back();
    link.sides[0].fd = std::move(fd);
    link.sides[1].fd = std::move(target);
  }

  // Reads what a side has sent; it is forwarded to the other one when it is due.
  void take(Link& link, size_t from) {
    std::vector<char> buffer(size_t(faults.piece));
    const ssize_t got = ::recv(link.sides[from].fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      link.sides[from].ended = true;
      return;
    }
    std::string bytes(buffer.data(), size_t(got));
    if (from == 0) {
      const int64_t flipped = faults.flip_at - link.from_caller;
      if (flipped >= 0 && flipped < got) bytes[size_t(flipped)] ^= char(1 << (random() % 8));
      link.from_caller += got;
    }
    const int64_t room = faults.truncate_after >= 0 ? faults.truncate_after - link.passed : INT64_MAX;
    if (int64_t(bytes.size()) >= room) {
      bytes.resize(size_t(std::max<int64_t>(room, 0)));
      for (Side& side : link.sides) side.ended = true;
    }
    link.passed += int64_t(bytes.size());
    if (faults.cut_after >= 0 && link.passed >= faults.cut_after) return reset(link);
    const auto delay = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(faults.delay));
    link.sides[1 - from].out.emplace_back(Clock::now() + delay, std::move(bytes));
  }

  // Writes to a side what is due, and shuts it down behind the last byte of the other side.
  void give(Link& link, size_t to) {
    Side& side = link.sides[to];
    while (!link.over && !side.out.empty() && side.out.front().first <= Clock::now()) {
      std::string& bytes = side.out.front().second;
      const ssize_t n = ::send(side.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) link.over = true;
      if (n < 0) return;
      bytes.erase(0, size_t(n));
      if (bytes.empty()) side.out.pop_front();
    }
    if (link.over || !link.sides[1 - to].ended || !side.out.empty() || side.is_shut) return;
    ::shutdown(side.fd.get(), SHUT_WR);
    side.is_shut = true;
  }

  void run() {
    while (!stop) {
      if (cut.exchange(false))
        for (Link& link : links) reset(link);
      std::erase_if(links, [](const Link& link) { return link.over; });
      std::vector<pollfd> polled{{listener.get(), POLLIN, 0}};
      for (Link& link : links)
        for (Side& side : link.sides) polled.push_back({hold || side.ended ? -1 : side.fd.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), 2);
      if (hold) continue;
      auto entry = polled.begin() + 1;
      for (Link& link : links) {
        for (const size_t from : {0, 1})
          if (entry++->revents && !link.over) take(link, from);
        for (const size_t to : {1, 0}) give(link, to);
        if (link.sides[0].is_shut && link.sides[1].is_shut) link.over = true;
      }
      if (polled[0].revents) accept_one();
    }
  }
};

Proxy::Proxy(std::string host, int port, ProxyFaults faults) : state_(std::make_unique<State>()) {
  state_->host = std::move(host);
  state_->target_port = port;
  state_->faults = faults;
  state_->random.seed(faults.seed);
  state_->listener = Fd(open_listener("127.0.0.1", state_->port));
  state_->thread = std::thread([this] { state_->run(); });
}

Proxy::~Proxy() {
  state_->stop = true;
  state_->thread.join();
}

int Proxy::port() const { return state_->port; }
int Proxy::connections() const { return state_->arrived; }
void Proxy::cut() { state_->cut = true; }
void Proxy::hold(bool on) { state_->hold = on; }
