// Strangers that flood the port of a job with connections, while it starts and while it works.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "dist/net.h"
#include "tests/dist/job.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

/// Processes that flood a port, each with 250 connections at a time, until this object is destroyed.
class Flood {
 public:
  Flood(int port, int processes) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < processes; ++i) {
      pids_.push_back(::fork());
      if (pids_.back() == 0) run(address);
    }
  }
  ~Flood() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

 private:
  [[noreturn]] static void run(const sockaddr_in& address) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<int> held(250, -1);
    for (size_t i = 0;; i = (i + 1) % held.size()) {
      if (held[i] >= 0) ::close(held[i]);
      held[i] = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      const linger none{1, 0};  // closes with a reset, so that no port stays in TIME_WAIT
      ::setsockopt(held[i], SOL_SOCKET, SO_LINGER, &none, sizeof none);
      (void)::connect(held[i], reinterpret_cast<const sockaddr*>(&address), sizeof address);
      if (i % 3 == 0) (void)::send(held[i], "LSc1", 4, MSG_NOSIGNAL);
    }
  }

  std::vector<pid_t> pids_;
};

}  // namespace

TEST_CASE("flood: strangers keep ranks neither from meeting nor from being heard") {
  TestJob job(4, 0.5, 30);
  const Flood flood(job.base.port, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double start = now_seconds();
  std::atomic<double> met = 0;
  const auto said = job.run(job.all(), [&](Control& control) {
    met = now_seconds() - start;
    for (int i = 0; i < 100; ++i) {
      control.barrier(str("round ", i), {0, 1, 2, 3}, Seconds(20));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  check_calm(said);
  CHECK(met.load() < 5 * (sanitized ? 3 : 1));
}
