// A TCP proxy that injects faults. See proxy.h.
#include "tests/dist/proxy.h"

#include <poll.h>
#include <sys/socket.h>

#include <list>
#include <random>
#include <thread>
#include <vector>

#include "dist/control.h"
#include "dist/net.h"

using namespace lockstep::dist;

struct Proxy::State {
  struct Piece {
    Clock::time_point due;
    std::string bytes;
  };
  struct Side {
    Fd fd;
    std::list<Piece> out;
    bool ended = false, is_shut = false;
  };  // out: not yet written to fd; ended: the peer sends no more
  struct Link {
    Side caller, target;
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
    reset(link.caller.fd);
    reset(link.target.fd);
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
    link.caller.fd = std::move(fd);
    link.target.fd = std::move(target);
  }

  // Reads what `from` has sent; it is forwarded to `to` when it is due.
  void take(Link& link, Side& from, Side& to, bool is_caller) {
    std::vector<char> buffer(size_t(faults.piece));
    const ssize_t got = ::recv(from.fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      from.ended = true;
      return;
    }
    std::string bytes(buffer.data(), size_t(got));
    const int64_t flipped = faults.flip_at - link.from_caller;
    if (is_caller && flipped >= 0 && flipped < got) bytes[size_t(flipped)] ^= char(1 << (random() % 8));
    if (is_caller) link.from_caller += got;
    const int64_t room = faults.truncate_after >= 0 ? faults.truncate_after - link.passed : INT64_MAX;
    if (int64_t(bytes.size()) >= room) {
      bytes.resize(size_t(std::max<int64_t>(room, 0)));
      link.caller.ended = link.target.ended = true;
    }
    link.passed += int64_t(bytes.size());
    if (faults.cut_after >= 0 && link.passed >= faults.cut_after) return reset(link);
    to.out.push_back(
        {Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(faults.delay)),
         std::move(bytes)});
  }

  void give(Link& link, Side& side) {
    while (!side.out.empty() && side.out.front().due <= Clock::now()) {
      Piece& piece = side.out.front();
      const ssize_t n = ::send(side.fd.get(), piece.bytes.data(), piece.bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) link.over = true;
      if (n < 0) return;
      piece.bytes.erase(0, size_t(n));
      if (piece.bytes.empty()) side.out.pop_front();
    }
  }

  void run() {
    while (!stop) {
      if (cut.exchange(false))
        for (Link& link : links) reset(link);
      std::erase_if(links, [](const Link& link) { return link.over; });
      std::vector<pollfd> polled{{listener.get(), POLLIN, 0}};
      for (Link& link : links)
        for (Side* side : {&link.caller, &link.target})
          polled.push_back({hold || side->ended ? -1 : side->fd.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), 2);
      if (hold) continue;
      size_t i = 1;
      for (Link& link : links) {
        if (polled[i].revents) take(link, link.caller, link.target, true);
        if (!link.over && polled[i + 1].revents) take(link, link.target, link.caller, false);
        i += 2;
        for (const auto& [from, to] : {std::pair(&link.caller, &link.target), std::pair(&link.target, &link.caller)}) {
          if (link.over) break;
          give(link, *to);
          if (from->ended && to->out.empty() && !to->is_shut) {
            ::shutdown(to->fd.get(), SHUT_WR);
            to->is_shut = true;
          }
        }
        if (link.caller.is_shut && link.target.is_shut) link.over = true;
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
