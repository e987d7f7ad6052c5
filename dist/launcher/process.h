#pragma once
// Processes that cannot be lost: each leads a process group of its own, dies with the one that started it, and what it
// leaves behind is found and ended.
#include <map>
#include <string>
#include <vector>

#include "dist/net.h"

namespace lockstep::dist {

using Environment = std::map<std::string, std::string>;
Environment this_environment();

/// What a process reads: nothing, what this process reads, or what is written to Started::input.
enum class Input { nothing, inherited, pipe };

struct Process {
  std::string name;               ///< "rank 3", "host b"
  std::vector<std::string> argv;  ///< argv[0] is a path
  Environment environment;
  std::vector<int> cores;  ///< to run on; empty: as this process
  Input input = Input::nothing;
};

struct Started {
  int pid = -1;
  Fd exited;  ///< a pidfd: readable when the process has ended
  Fd input, output, error;
};

/// The path of a program, looked up in PATH as a shell does. Error: not there, a folder, not executable.
std::string find_program(const std::string& name);

/// Starts a process whose parent is this thread. Error when it cannot run.
Started start(const Process& process);

/// Children of this process (zombies not counted). With PR_SET_CHILD_SUBREAPER also what their parents left behind.
struct Child {
  int pid;
  std::string name;
};
std::vector<Child> children();
/// Kills and reaps all children, and theirs. Gives back the names of those that were still running; gives up after
/// `seconds`.
std::vector<Child> kill_children(double seconds);

/// "SIGKILL".
std::string signal_name(int signal);
/// Seconds of the monotonic clock.
double monotonic_seconds();

}  // namespace lockstep::dist
