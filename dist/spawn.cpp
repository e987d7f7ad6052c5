// spawn.cpp: ranks without a launcher: threads of this process, or forked processes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include <omp.h>

#include "base/threads.h"
#include "dist/job.h"
#include "dist/local_control.h"
#include "dist/process_group.h"
#include "tensor/random.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto grace = std::chrono::seconds(2);       // time in which the other ranks may learn the cause and end
constexpr auto after_term = std::chrono::seconds(5);  // time from SIGTERM to SIGKILL

void spawn_threads(int n, const std::function<void(int)>& fn, const SpawnOptions& options) {
  Rendezvous place;
  place.job = "threads " + random_token().substr(0, 16);
  place.transport = options.transport;
  place.timeout = options.timeout;
  place.heartbeat = options.heartbeat;
  const auto controls = local_controls(n, place);
  const int share = std::max(1, get_threads() / n);  // otherwise every rank would start a full OpenMP team
  std::vector<std::thread> threads;
  const uint64_t seed = random_state().seed;
  const auto body = [&](int rank) {
    set_random_state({.seed = seed});
    const ThreadLimit limit(share);
    try {
      World world = make_world(controls[size_t(rank)], options.backend);
      set_thread_world(&world);
      try {
        guard(world, [&] { fn(rank); });
      } catch (...) {  // reported already; spawn() throws it
      }
      set_thread_world(nullptr);
      world.group.reset();
      world.job->finish();
    } catch (const std::exception& e) { controls[size_t(rank)]->report(Fault::rank_failed, rank, e.what()); }
  };
  try {
    for (int rank = 0; rank < n; ++rank) threads.emplace_back(body, rank);
  } catch (const std::exception& e) {
    controls[0]->report(Fault::rank_failed, int(threads.size()),
                        str("cannot start thread ", threads.size(), " of ", n, ": ", e.what(),
                            "; start fewer ranks, or raise the limit of threads (ulimit -u)"));
  }
  for (std::thread& thread : threads) thread.join();
  if (controls[0]->failed()) controls[0]->raise();
}

struct Child {
  pid_t pid = -1;
  int pipe = -1;  // where the child writes its failure
  bool closed = false;
  std::string said;
};

[[noreturn]] void run_child(const Rendezvous& place, const std::string& backend, const std::function<void(int)>& fn,
                            int out, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent had ended before prctl()
  // Reset the handlers: those of the parent act on the parent's state.
  for (const int ending : {SIGTERM, SIGINT}) signal(ending, SIG_DFL);
  set_threads(1);  // libgomp's threads do not survive a fork, but libgomp does not notice
  omp_set_num_threads(1);
  int code = 1;
  std::string what;
  int rank = place.rank;
  Fault fault = Fault::rank_failed;
  try {
    init(place, backend);
    try {
      guard([&] { fn(place.rank); });
    } catch (...) {
      if (world().control().failed()) world().control().raise();  // the first cause, which may be another rank's
      throw;
    }
    shutdown();
    code = 0;
  } catch (const DistError& e) {
    fault = e.fault;
    rank = e.rank;
    what = e.what();
  } catch (const std::exception& e) { what = e.what(); } catch (...) {
    what = "an exception that is not a std::exception; throw a std::exception, which names the cause";
  }
  if (code) {
    what.resize(std::min<size_t>(what.size(), 4000));  // the pipe must hold the whole text
    what = str(int(fault), " ", rank, " ", what);
    if (write(out, what.data(), what.size()) < 0) code = 2;
    try {
      shutdown();  // lets rank 0's store send its last messages
    } catch (...) {}
  }
  std::fflush(nullptr);
  _exit(code);  // not exit(): the atexit handlers belong to the parent
}

std::string end_of(int status) {
  if (WIFSIGNALED(status))
    return str("was killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return str("ended with exit code ", WEXITSTATUS(status));
}

class Children {
 public:
  ~Children() {  // closes the pipes; children are left only if start() or wait() threw
    for (const Child& c : children)
      if (c.pid > 0) kill(c.pid, SIGKILL);
    for (const Child& c : children)
      if (c.pid > 0) waitpid(c.pid, nullptr, 0);
    for (const Child& c : children)
      if (c.pipe >= 0) close(c.pipe);
  }

  void start(const Rendezvous& place, const std::string& backend, const std::function<void(int)>& fn) {
    int ends[2];
    LOCKSTEP_CHECK(pipe2(ends, O_CLOEXEC) == 0, "[spawn] expected to make a pipe for rank ", place.rank,
                   ", got: ", std::strerror(errno), "; raise the limit of open files (ulimit -n)");
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      for (const Child& c : children) close(c.pipe);
      close(ends[0]);
      if (place.rank != 0 && place.listener >= 0) close(place.listener);
      Rendezvous own = place;
      if (place.rank != 0) own.listener = -1;
      run_child(own, backend, fn, ends[1], parent);
    }
    const int error = errno;
    close(ends[1]);
    children.push_back({pid, ends[0], false, {}});
    LOCKSTEP_CHECK(pid > 0, "[spawn] expected to fork rank ", place.rank, ", got: ", std::strerror(error),
                   "; start fewer ranks, or raise the limit of processes (ulimit -u)");
  }

  // Waits for all ranks. After the first failure, the others get time to learn of it, then SIGTERM, then SIGKILL.
  std::optional<DistError> wait() {
    std::optional<DistError> first;
    Clock::time_point failed;
    int signals = 0;
    for (size_t left = children.size(); left > 0;) {
      std::vector<pollfd> polls;  // a pipe closes when its rank ends
      bool ending = false;
      for (const Child& c : children) {
        ending |= c.pid > 0 && c.closed;
        polls.push_back({c.pid > 0 && !c.closed ? c.pipe : -1, POLLIN, 0});
      }
      poll(polls.data(), polls.size(), ending ? 2 : first ? 50 : 1000);
      for (size_t r = 0; r < children.size(); ++r) {
        Child& c = children[r];
        if (c.pid < 0) continue;
        if (polls[r].revents) {
          char buffer[4096];
          const ssize_t n = read(c.pipe, buffer, sizeof buffer);
          if (n > 0) c.said.append(buffer, size_t(n));
          if (n > 0) continue;
          c.closed = true;
        }
        int status = 0;
        if (waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
        c.pid = -1;
        --left;
        pollfd rest{c.pipe, POLLIN, 0};  // output written after poll()
        char last[4096];
        for (ssize_t n; !c.closed && poll(&rest, 1, 0) > 0 && (n = read(c.pipe, last, sizeof last)) > 0;)
          c.said.append(last, size_t(n));
        if (status == 0 || first) continue;
        first = failure_of(int(r), c.said, status);
        failed = Clock::now();
      }
      const int due = !first                                       ? 0
                      : Clock::now() > failed + grace + after_term ? 2
                      : Clock::now() > failed + grace              ? 1
                                                                   : 0;
      if (due > signals) {
        signals = due;
        for (const Child& c : children) {
          if (c.pid < 0) continue;
          kill(c.pid, due == 1 ? SIGTERM : SIGKILL);
          kill(c.pid, SIGCONT);  // a stopped process would not handle the signal
        }
      }
    }
    return first;
  }

 private:
  static DistError failure_of(int rank, const std::string& said, int status) {
    int fault = 0, at_fault = 0, length = 0;
    if (std::sscanf(said.c_str(), "%d %d %n", &fault, &at_fault, &length) == 2)
      return DistError(Fault(fault), at_fault, said.substr(size_t(length)));
    return DistError(Fault::rank_failed, rank, str("[spawn] rank ", rank, " ", end_of(status), "; see its output"));
  }

  std::vector<Child> children;
};

void spawn_processes(int n, const std::function<void(int)>& fn, const SpawnOptions& options) {
  LOCKSTEP_CHECK(options.transport != "threads",
                 "[spawn] expected transport auto, shm or tcp between processes, got threads");
  Rendezvous place;
  place.world_size = place.local_world_size = n;
  place.job = "spawn " + random_token().substr(0, 16);
  place.token = random_token();
  place.transport = options.transport;
  place.timeout = options.timeout;
  place.heartbeat = options.heartbeat;
  place.port = 0;
  if (n > 1) place.listener = open_listener(place.address, place.port);
  std::fflush(nullptr);  // otherwise the children would print the buffer again
  std::optional<DistError> failure;
  try {
    Children children;
    for (int rank = 0; rank < n; ++rank) {
      place.rank = place.local_rank = rank;
      children.start(place, options.backend, fn);
    }
    if (place.listener >= 0) close(place.listener);
    place.listener = -1;
    failure = children.wait();
  } catch (...) {
    if (place.listener >= 0) close(place.listener);
    throw;
  }
  if (failure) throw *failure;
}

}  // namespace

void spawn(int n, const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  LOCKSTEP_CHECK(n >= 1 && n <= 4096, "[spawn] expected 1 to 4096 ranks, got ", n);
  LOCKSTEP_CHECK(!is_initialized(),
                 "[spawn] expected a process without a world, got one inside a job already; "
                 "call shutdown() first");
  LOCKSTEP_CHECK(options.timeout.count() > 0 && options.heartbeat.count() > 0,
                 "[spawn] expected a timeout and a heartbeat above 0 s, got ", options.timeout.count(), " and ",
                 options.heartbeat.count());
  check_backend("spawn", options.backend);
  for (const char* known : {"auto", "threads", "shm", "tcp"}) {
    if (options.transport != known) continue;
    return options.kind == SpawnOptions::Kind::threads ? spawn_threads(n, fn, options)
                                                       : spawn_processes(n, fn, options);
  }
  fail(str("[spawn] expected transport auto, threads, shm or tcp, got \"", options.transport, "\""));
}

}  // namespace lockstep::dist
