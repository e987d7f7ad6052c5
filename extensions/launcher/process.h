#pragma once
// Child processes that cannot get lost: each one leads a process group of its own, dies with its parent, and its
// leftover descendants are found and killed.
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dist/net.h"

namespace lockstep::dist {

/// Environment variables by name.
using Environment = std::map<std::string, std::string>;
Environment this_environment();  ///< environment of this process

/// A process's stdin: /dev/null, this process's stdin, or a pipe from Started::input.
enum class Input { nothing, inherited, pipe };

/// A process to start.
struct Process {
  std::string name;               ///< "rank 3", "host b"
  std::vector<std::string> argv;  ///< argv[0] must be a path
  Environment environment;
  std::vector<int> cores;  ///< CPU affinity; empty: inherited
  Input input = Input::nothing;
};

/// A started process and the parent's ends of its pipes.
struct Started {
  int pid = -1;
  Fd exited;  ///< a pidfd: readable once the process has ended
  Fd input, output, error;
};

/// Finds a program in PATH as a shell does, and returns its path. Error if there is none, or it is not executable.
std::string find_program(const std::string& name);

/// Starts a process as a child of this thread. Error when it cannot be executed.
Started start(const Process& process);

/// A child of this process. With PR_SET_CHILD_SUBREAPER, orphaned descendants count as children.
struct Child {
  int pid;
  std::string name;
};
/// All children that are not zombies.
std::vector<Child> children();
/// Kills and reaps all children and their descendants; gives up after `seconds`. Returns the processes that it killed.
std::vector<Child> kill_children(double seconds);

/// Runs a command and writes its output to a file in `folder`. If this process ends, or `interrupted` returns true, the
/// command gets SIGTERM. Error if the command is interrupted, takes longer than `timeout` seconds or fails. If the
/// command fails, the Error begins with `who` and names the exit code (128 + the signal's number if a signal ended the
/// command) and the last lines of the output.
void run_program(const std::string& who, const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 const std::filesystem::path& folder, double timeout, bool (*interrupted)());

/// The signal that the kernel sends when the parent process dies.
inline constexpr int parent_died = 30;  // SIGPWR

/// Runs `body` in a child process and returns the child's exit code. This process forwards signals to the child, which
/// reads them from the signalfd `signals`. When the child has ended, this process kills its leftover descendants.
int guarded(const std::function<int(int signals)>& body);

/// The name of a signal, such as "SIGKILL".
std::string signal_name(int signal);

}  // namespace lockstep::dist
