// supervisor.cpp: the event loop that supervises the processes of a job. See supervisor.h.
#include "extensions/launcher/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/clock.h"

namespace lockstep::dist {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double last_wait = 5;  // seconds to wait for processes that even SIGKILL does not end (stuck in the kernel)
constexpr size_t longest_welcome = size_t(64) << 10;  // most bytes of login output before a remote launcher's hello

struct Running {
  const Launched* member = nullptr;
  int index = 0;  // among the members
  Started process;
  Relay output, error;
  bool alive = false;
  bool connected = true;  // remote launchers: true once the hello has arrived; others: true
  std::string hello;      // output before the hello
  Ended ended;
};

class Supervisor {
 public:
  Supervisor(const std::vector<Launched>& members, const Supervision& options, Console& console)
      : members_(members), options_(options), console_(console) {}

  Outcome run() {
    try {
      for (const Launched& member : members_) launch(member);
      while (alive() > 0 && !gave_up_) {
        wait();
        advance();
      }
    } catch (...) {
      for (const auto& r : running_) kill(-r->process.pid, SIGKILL);
      kill_children(last_wait);
      throw;
    }
    finish();
    return std::move(outcome_);
  }

 private:
  void launch(const Launched& member) {
    auto r = std::make_unique<Running>();
    r->member = &member, r->index = int(running_.size());
    r->output = Relay(&console_, 1, member.prefix, member.show_output, member.output_file);
    r->error = Relay(&console_, 2, member.prefix, member.show_error, member.error_file);
    r->process = start(member.process);
    for (std::string_view rest = member.greeting; !rest.empty();) {
      const ssize_t written = write(r->process.input.get(), rest.data(), rest.size());
      if (written < 0 && errno != EINTR) break;  // the process has ended; its exit status will say why
      rest.remove_prefix(size_t(std::max<ssize_t>(written, 0)));
    }
    r->alive = true, r->connected = !member.remote, r->ended.pid = r->process.pid;
    running_.push_back(std::move(r));
  }

  int alive() const {
    return int(std::count_if(running_.begin(), running_.end(), [](const auto& r) { return r->alive; }));
  }

  // Sends a signal to the process group of every member of the job, even if the group's leader has exited.
  void signal_all(int signal) {
    for (const auto& r : running_) {
      if (r->member->remote && r->alive && r->process.input) {
        const std::string line = "signal " + std::to_string(signal) + "\n";
        [[maybe_unused]] const auto written = write(r->process.input.get(), line.data(), line.size());
        continue;
      }
      // A process group leader that has exited stays a zombie until the job ends, so no other process has its pid.
      kill(-r->process.pid, signal);
      // A stopped process handles the signal only after SIGCONT.
      if (signal != SIGSTOP && signal != SIGKILL) kill(-r->process.pid, SIGCONT);
    }
  }

  void kill_all() {
    for (const auto& r : running_) r->ended.stopped |= r->alive;
    signal_all(SIGKILL);
    for (const auto& r : running_) r->process.input.close();
    term_at_ = kill_at_ = never;
    give_up_at_ = steady_seconds() + last_wait;
  }

  // Passes a signal on to all processes. A second signal kills them. `announced`: it came from the launcher that
  // started this one, and that launcher has already printed a message.
  void interrupt(int signal, bool announced = false) {
    if (outcome_.interrupted || signal == parent_died) {
      if (signal != parent_died && give_up_at_ == never && !announced)
        console_.say(signal_name(signal), " again: killing all that still run");
      if (!outcome_.interrupted) outcome_.interrupted = signal;
      console_.hurry();
      return kill_all();
    }
    outcome_.interrupted = signal;
    console_.hurry();
    if (!announced)
      console_.say(signal == SIGPIPE ? console_.why_lost() + ": SIGPIPE" : signal_name(signal), ": passed on to ",
                   alive(), alive() == 1 ? " process" : " processes", ", which have ", int(options_.grace),
                   " s to end; the next signal kills them");
    for (const auto& r : running_) r->ended.stopped |= r->alive;
    signal_all(signal);
    term_at_ = never, kill_at_ = steady_seconds() + options_.grace;
  }

  void take_signal() {
    signalfd_siginfo info;
    while (read(options_.signals, &info, sizeof info) == ssize_t(sizeof info)) {
      const int signal = int(info.ssi_signo);
      if (signal == SIGUSR1 || signal == SIGUSR2) signal_all(signal);
      else if (signal == SIGTSTP) signal_all(SIGSTOP);
      else if (signal == SIGCONT) signal_all(SIGCONT);
      else if (signal != SIGCHLD) interrupt(signal);
    }
  }

  void take_control() {
    char bytes[256];
    const ssize_t got = read(options_.control, bytes, sizeof bytes);
    if (got < 0) return;
    if (got == 0) {
      options_.control = -1;
      return interrupt(parent_died);
    }
    control_.append(bytes, size_t(got));
    for (size_t end; (end = control_.find('\n')) != std::string::npos; control_.erase(0, end + 1)) {
      const int signal = control_.starts_with("signal ") ? std::atoi(control_.c_str() + 7) : 0;
      if (signal == SIGKILL) interrupt(parent_died);
      else if (signal == SIGSTOP || signal == SIGCONT || signal == SIGUSR1 || signal == SIGUSR2) signal_all(signal);
      else if (signal > 0) interrupt(signal, true);
    }
  }

  void take_output(Running& r, bool error) {
    Fd& from = error ? r.process.error : r.process.output;
    static char bytes[65536];
    const ssize_t got = read(from.get(), bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return from.close();
    std::string_view text(bytes, size_t(got));
    if (!error && !r.connected) {  // login messages precede the hello
      if (!r.ended.chatters) r.hello += text;
      const size_t at = r.hello.find(remote_hello);
      r.ended.chatters = at == std::string::npos && r.hello.size() > longest_welcome;
      if (at == std::string::npos) return;
      r.connected = true;
      console_.say(r.member->process.name, ": connected after ", int((steady_seconds() - started_) * 1000), " ms");
      r.output.take(r.hello.substr(0, at) + r.hello.substr(at + std::string_view(remote_hello).size()));
      return r.hello.clear();
    }
    (error ? r.error : r.output).take(text);
  }

  void take_end(Running& r) {
    siginfo_t info{};
    // WNOWAIT: do not reap yet, so that the pid stays reserved until its process group has been killed.
    if (waitid(P_PID, id_t(r.process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    r.alive = false;
    r.ended.status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
    r.ended.after = steady_seconds() - started_;
    r.ended.unreachable = !r.connected;
  }

  void wait() {
    std::vector<pollfd> fds;
    std::vector<std::function<void()>> actions;  // what to do when one is ready
    const auto add = [&](int fd, std::function<void()> action, short event = POLLIN) {
      if (fd < 0) return;
      fds.push_back({fd, event, 0});
      actions.push_back(std::move(action));
    };
    add(options_.signals, [this] { take_signal(); });
    add(options_.control, [this] { take_control(); });
    add(
        console_.pending(), [] {}, POLLOUT);
    for (const auto& running : running_) {
      Running* const r = running.get();
      if (r->alive) add(r->process.exited.get(), [this, r] { ended_.push_back(r); });
      if (console_.full() && !outcome_.interrupted) continue;  // backpressure: ranks block until the output is read
      add(r->process.output.get(), [this, r] { take_output(*r, false); });
      add(r->process.error.get(), [this, r] { take_output(*r, true); });
    }
    double until = std::min({term_at_, kill_at_, give_up_at_});
    for (const auto& r : running_)
      if (r->alive && !r->connected) until = std::min(until, started_ + options_.connect);
    const double left = until - steady_seconds();
    const int ms = until == never ? -1 : int(std::clamp(left * 1000 + 1, 0.0, 1e6));
    if (poll(fds.data(), fds.size(), ms) < 0) {
      LOCKSTEP_CHECK(errno == EINTR, "[run] poll failed (errno ", errno, "); free memory, or raise ulimit -n");
      return;
    }
    // Read output first, so that the last words of a dead process are in its report.
    for (size_t i = 0; i < fds.size(); ++i)
      if (fds[i].revents) actions[i]();
    console_.pump();
  }

  // Handles the processes that have ended, and the time limits that have passed.
  void advance() {
    // If several processes have ended since the last poll, one that was killed by a signal is the likelier cause of the
    // failure: the other processes notice its end and exit with an error.
    std::vector<int> failed;
    for (Running* r : ended_) {
      take_end(*r);
      if (!r->alive && r->ended.stop_signal() && !r->ended.stopped) ends_by_itself(*r);
      else if (!r->alive && r->ended.failed() && !r->ended.stopped) failed.push_back(r->index);
    }
    ended_.clear();
    const double now = steady_seconds();
    for (const auto& r : running_) {
      if (!r->alive || r->connected || r->ended.unreachable) continue;
      if (now < started_ + options_.connect && !r->ended.chatters) continue;
      r->ended.unreachable = true;
      kill(-r->process.pid, SIGKILL);
      failed.push_back(r->index);
    }
    if (!failed.empty() && outcome_.first < 0) {
      outcome_.first =
          *std::max_element(failed.begin(), failed.end(), [&](int a, int b) { return was_killed(a) < was_killed(b); });
      if (!outcome_.interrupted) term_at_ = now + options_.notice;
    }
    if (console_.lost() && !outcome_.interrupted) interrupt(SIGPIPE);
    if (now >= term_at_) {
      for (const auto& r : running_) r->ended.stopped |= r->alive;
      signal_all(SIGTERM);
      term_at_ = never, kill_at_ = now + options_.stop;
    }
    if (now >= kill_at_) kill_all();
    if (now >= give_up_at_) {
      for (const auto& r : running_) kill(-r->process.pid, SIGKILL);  // the ssh process too
      gave_up_ = give_up_twice_;
      give_up_twice_ = true, give_up_at_ = now + last_wait;
    }
  }

  // Called when a process's exit code says that SIGINT or SIGTERM stopped the job. Gives the other processes
  // options_.grace seconds to end by themselves.
  void ends_by_itself(const Running& r) {
    if (outcome_.interrupted) return;
    outcome_.interrupted = r.ended.stop_signal();
    console_.hurry();
    kill_at_ = steady_seconds() + options_.grace;
    if (alive() > 0)  // the signal may have been meant for another rank
      console_.say(r.member->process.name, " ended with exit code ", r.ended.code(), ", which says that ",
                   signal_name(outcome_.interrupted), " stopped the job: the other ",
                   alive() == 1 ? "rank has " : "ranks have ", int(options_.grace), " s to end too");
    for (const auto& other : running_) other->ended.stopped |= other->alive;
  }

  bool was_killed(int index) const { return WIFSIGNALED(running_[size_t(index)]->ended.status); }

  void finish() {
    for (const auto& r : running_) {
      kill(-r->process.pid, SIGKILL);
      if (r->alive)
        console_.say(r->member->process.name, " (pid ", r->process.pid,
                     ") does not end even when killed; it is left behind: check its file systems and devices");
      else waitpid(r->process.pid, nullptr, 0);
    }
    for (const Child& child : kill_children(last_wait))
      console_.say("ended a process that a rank had left behind: ", child.name, " (pid ", child.pid, ")");
    // All processes have ended: read the output that is still in their pipes.
    for (const auto& r : running_) {
      for (const bool error : {false, true}) {
        Fd& from = error ? r->process.error : r->process.output;
        for (int left = 1 << 10; from && left > 0; --left) {
          pollfd more{from.get(), POLLIN, 0};
          if (poll(&more, 1, 0) <= 0) break;
          take_output(*r, error);
        }
      }
      if (!r->connected) r->output.take(r->hello);
      r->output.finish(), r->error.finish();
      r->ended.last_lines = r->error.tail(12);
      outcome_.members.push_back(r->ended);
    }
  }

  const std::vector<Launched>& members_;
  Supervision options_;
  Console& console_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<Running*> ended_;
  std::string control_;
  Outcome outcome_;
  double started_ = steady_seconds(), term_at_ = never, kill_at_ = never, give_up_at_ = never;
  bool gave_up_ = false, give_up_twice_ = false;
};

}  // namespace

int Ended::stop_signal() const {
  const int code = status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return code == 128 + SIGINT || code == 128 + SIGTERM ? code - 128 : 0;
}

int Ended::code() const {
  return unreachable || status < 0 ? 1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Outcome supervise(const std::vector<Launched>& members, const Supervision& supervision, Console& console) {
  return Supervisor(members, supervision, console).run();
}

}  // namespace lockstep::dist
