// process.cpp: starts, finds and kills child processes. See process.h.
#include "extensions/launcher/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "base/suggest.h"

namespace lockstep::dist {
namespace {

static_assert(parent_died == SIGPWR);

void make_pipe(Fd& read_end, Fd& write_end) {
  int ends[2];
  LOCKSTEP_CHECK(pipe2(ends, O_CLOEXEC) == 0, "[run] cannot make a pipe: ", std::strerror(errno),
                 errno == EMFILE || errno == ENFILE ? "; raise the limit of open files (ulimit -n), a rank needs 4"
                                                    : "; free memory");
  read_end = Fd(ends[0]), write_end = Fd(ends[1]);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// The child sends this to its parent through a pipe when it cannot start the program: the number of the step that
/// failed, and errno. A successful exec closes the pipe, and the parent reads nothing.
struct Failure {
  int step = 0, error = 0;
};
constexpr const char* steps[] = {"", "be set to end with its launcher", "be given its input and output",
                                 "run on the cores given", "run"};

/// The last lines of a file, indented.
std::string last_lines(const std::filesystem::path& file, size_t count) {
  std::ifstream in(file);
  std::deque<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back("  " + line + "\n");
    if (lines.size() > count) lines.pop_front();
  }
  return std::accumulate(lines.begin(), lines.end(), std::string());
}

}  // namespace

Environment this_environment() {
  Environment all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t at = text.find('=', 1);
    if (at != std::string::npos) all.emplace(text.substr(0, at), text.substr(at + 1));
  }
  return all;
}

std::string find_program(const std::string& name) {
  LOCKSTEP_CHECK(!name.empty(), "[run] expected a program to run, got an empty name; give its path");
  const auto usable = [](const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    struct stat info;
    LOCKSTEP_CHECK(stat(name.c_str(), &info) == 0, "[run] cannot run '", name, "': ", std::strerror(errno),
                   "; check the path");
    LOCKSTEP_CHECK(!S_ISDIR(info.st_mode), "[run] cannot run '", name, "': it is a folder; give the path of a program");
    LOCKSTEP_CHECK(usable(name), "[run] cannot run '", name, "': it is not executable (chmod +x)");
    return name;
  }
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path && *path ? path : "/usr/local/bin:/usr/bin:/bin", ':')) {
    const std::string found = (folder.empty() ? "." : folder) + "/" + name;
    if (usable(found)) return found;
  }
  fail(str("[run] no program '", name, "' in PATH",
           usable("./" + name) ? "; to run the one here, write ./" + name : "; give its path"));
}

Started start(const Process& process) {
  Started s;
  Fd input, output, error, report, report_end;
  make_pipe(s.output, output);
  make_pipe(s.error, error);
  make_pipe(report, report_end);
  if (process.input == Input::pipe) make_pipe(input, s.input);
  if (process.input == Input::nothing) input = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const Fd* ours : {&s.output, &s.error}) fcntl(ours->get(), F_SETFL, O_NONBLOCK);

  // Allocate before the fork: the child may only make system calls.
  std::vector<std::string> variables;
  for (const auto& [key, value] : process.environment) variables.push_back(key + "=" + value);
  const std::vector<char*> arguments = pointers(process.argv), environment = pointers(variables);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : process.cores)
    if (core < CPU_SETSIZE) CPU_SET(core, &cores);
  const int parent = getpid();

  s.pid = fork();
  LOCKSTEP_CHECK(s.pid >= 0, "[run] cannot start ", process.name, ": ", std::strerror(errno),
                 errno == EAGAIN ? "; raise the limit of processes (ulimit -u)" : "; free memory");
  if (s.pid == 0) {
    const auto give_up = [&](int step) {
      const Failure failure{step, errno};
      [[maybe_unused]] const auto written = write(report_end.get(), &failure, sizeof failure);
      _exit(127);
    };
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(1);
    if (getppid() != parent) _exit(127);  // the parent died before prctl()
    for (const int ignored : {SIGPIPE, SIGTTOU, SIGTTIN, SIGXFSZ}) signal(ignored, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (input && dup2(input.get(), STDIN_FILENO) < 0) give_up(2);
    if (dup2(output.get(), STDOUT_FILENO) < 0 || dup2(error.get(), STDERR_FILENO) < 0) give_up(2);
    if (!process.cores.empty() && sched_setaffinity(0, sizeof cores, &cores) != 0) give_up(3);
    execve(arguments[0], arguments.data(), environment.data());
    give_up(4);
  }
  setpgid(s.pid, s.pid);  // the child calls it too: the group must exist whichever of the two runs first
  report_end.close();
  Failure failure;
  ssize_t got;
  do got = read(report.get(), &failure, sizeof failure);
  while (got < 0 && errno == EINTR);
  if (got == ssize_t(sizeof failure)) {
    waitpid(s.pid, nullptr, 0);
    fail(str("[run] ", process.name, " could not ", steps[failure.step], ": ", process.argv[0], ": ",
             std::strerror(failure.error),
             failure.error == ENOEXEC ? "; a script needs a first line such as #!/usr/bin/env python3"
             : failure.step == 3      ? "; give --bind-core-list other cores, or leave ranks unbound"
                                      : "; check the program and its permissions"));
  }
  s.exited = Fd(int(syscall(SYS_pidfd_open, s.pid, 0)));
  if (!s.exited) {
    const int error_code = errno;
    kill(-s.pid, SIGKILL);
    waitpid(s.pid, nullptr, 0);
    fail(str("[run] cannot watch ", process.name, " (pidfd_open: ", std::strerror(error_code),
             error_code == ENOSYS ? "); use Linux 5.3 or later" : "); raise the limit of open files (ulimit -n)"));
  }
  return s;
}

std::vector<Child> children() {
  std::vector<Child> found;
  const int self = getpid();
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");  // format: pid (name) state parent ...
    std::string line;
    if (!std::getline(in, line)) continue;
    const size_t open = line.find('('), end = line.rfind(')');
    if (open == std::string::npos || end == std::string::npos || end + 4 > line.size()) continue;
    if (line[end + 2] != 'Z' && line[end + 2] != 'X' && std::atoi(line.c_str() + end + 4) == self)
      found.push_back({std::atoi(pid.c_str()), line.substr(open + 1, end - open - 1)});
  }
  return found;
}

std::vector<Child> kill_children(double seconds) {
  std::vector<Child> killed;
  const double deadline = steady_seconds() + seconds;
  for (;;) {
    int reaped;
    while ((reaped = waitpid(-1, nullptr, WNOHANG)) > 0) {}
    if ((reaped < 0 && errno == ECHILD) || steady_seconds() > deadline) return killed;
    // Orphaned grandchildren become children of this process, so repeat until none are left.
    for (const Child& child : children()) {
      kill(child.pid, SIGKILL);
      if (std::none_of(killed.begin(), killed.end(), [&](const Child& k) { return k.pid == child.pid; }))
        killed.push_back(child);
    }
    poll(nullptr, 0, 1);
  }
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

void run_program(const std::string& who, const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 const std::filesystem::path& folder, double timeout, bool (*interrupted)()) {
  const std::filesystem::path output = folder / "output.txt";
  const std::vector<char*> argv = pointers(command);
  const int out = open(output.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  LOCKSTEP_CHECK(out >= 0, output.string(),
                 ": cannot be written; check that the folder for temporary files has space and may be written to");
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(argv[0], argv.data());
    dprintf(STDERR_FILENO, "%s: cannot be started: %s; check its path and permissions\n", argv[0], strerror(errno));
    _exit(127);
  }
  close(out);
  LOCKSTEP_CHECK(child > 0, "no process can be started: ", strerror(errno),
                 "; end other processes, or raise the limit (ulimit -u)");
  const Fd ended(int(syscall(SYS_pidfd_open, child, 0)));
  const double start = steady_seconds();
  bool is_signaled = false, late = false;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) != child) {
    const double seconds = steady_seconds() - start;
    if (seconds > timeout) late = true;
    if ((late || interrupted()) && !is_signaled)
      kill(child, SIGTERM), is_signaled = true;  // the launcher ends its ranks
    if (is_signaled && seconds > timeout + 40) kill(child, SIGKILL);
    pollfd entry{ended.get(), POLLIN, 0};
    poll(&entry, 1, 200);
  }
  LOCKSTEP_CHECK(!late, "the run took longer than --timeout ", timeout, " s; give a longer one");
  LOCKSTEP_CHECK(!interrupted(), "interrupted; run the command again");
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  LOCKSTEP_CHECK(code == 0, who, " failed with exit code ", code, "; see its last lines:\n", last_lines(output, 20));
}

/// Forwards signals until the supervisor has ended, then ends all processes of the job that are left.
static int pass_signals_on(int supervisor, const sigset_t& watched) {
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

int guarded(const std::function<int(int signals)>& body) {
  sigset_t watched, before;
  sigemptyset(&watched);
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD, parent_died})
    sigaddset(&watched, one);
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
