// The process that the user starts. It runs the supervisor as a child process and forwards signals to it. When
// the supervisor has ended, this process ends all processes of the job that are left. See guarded() in launch.h.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "base/check.h"
#include "extensions/launcher/launch.h"

namespace lockstep::dist {
namespace {

constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

int pass_signals_on(int supervisor, const sigset_t& watched) {
  for (;;) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&watched, &info);
    if (signal < 0) continue;
    if (signal != SIGCHLD) kill(supervisor, signal);
    if (signal == SIGTSTP) raise(SIGSTOP);  // Ctrl-Z: the supervisor, which stops the ranks, has the signal already
    int status = 0;
    if (waitpid(supervisor, &status, WNOHANG) != supervisor) continue;
    const auto left = kill_children(5);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    std::cerr << "lockstep run: the supervisor (pid " << supervisor << ") was killed by "
              << signal_name(WTERMSIG(status)) << "; its ranks were ended";
    if (!left.empty())
      std::cerr << ", and " << left.size() << (left.size() == 1 ? " process" : " processes")
                << " that they had started";
    std::cerr << "; see dmesg for the cause, and start the run again" << std::endl;
    return 128 + WTERMSIG(status);
  }
}

}  // namespace

int guarded(const std::function<int(int signals)>& body) {
  sigset_t watched, before;
  sigemptyset(&watched);
  for (const int one : passed_on) sigaddset(&watched, one);
  sigaddset(&watched, SIGCHLD), sigaddset(&watched, parent_died);
  sigprocmask(SIG_BLOCK, &watched, &before);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::cout.flush(), std::cerr.flush(), std::fflush(nullptr);
  const int self = getpid();
  const int supervisor = fork();
  LOCKSTEP_CHECK(supervisor >= 0, "[run] cannot start a process: ", std::strerror(errno),
                 "; free memory, or raise the limit of processes (ulimit -u)");
  if (supervisor == 0) {
    int code = 1;
    try {
      setpgid(0, 0);  // Ctrl-C reaches the parent process only, so the signal arrives once
      prctl(PR_SET_CHILD_SUBREAPER, 1);
      prctl(PR_SET_PDEATHSIG, parent_died);
      if (getppid() != self) _exit(1);
      for (const int one : {SIGTTOU, SIGTTIN}) signal(one, SIG_IGN);
      sigdelset(&watched, SIGCHLD);
      const Fd signals(signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
      LOCKSTEP_CHECK(signals, "[run] cannot watch signals: ", std::strerror(errno),
                     "; raise the limit of open files (ulimit -n)");
      code = body(signals.get());
    } catch (const std::exception& error) { std::cerr << "error: " << error.what() << std::endl; }
    std::fflush(nullptr);
    _exit(code);
  }
  const int code = pass_signals_on(supervisor, watched);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace lockstep::dist
