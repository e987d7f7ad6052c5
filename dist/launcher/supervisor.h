#pragma once
// Watches a set of processes that live and die together, until the last one is gone.
//
//   running ──one fails──▶ 1 s for the others to see it themselves ──▶ SIGTERM ──5 s──▶ SIGKILL ──▶ sweep
//      └────── Ctrl-C ───▶ passed on, 30 s to end in order; a second one ───────────────▶ SIGKILL ──▶ sweep
#include <memory>
#include <string>
#include <vector>

#include "dist/launcher/output.h"
#include "dist/launcher/process.h"

namespace lockstep::dist {

/// A process and where its output goes.
struct Launched {
  Process process;
  std::string prefix;
  bool show_output = true, show_error = true;
  std::string output_file, error_file;  ///< empty: none
  /// Another launcher, on another host, behind ssh: signals are sent as lines to its input, and it says when it is
  /// there.
  bool remote = false;
  std::string greeting;  ///< what is written to its input first
};

struct Supervision {
  double notice = 1;    ///< seconds the others have to see a failure themselves, and to write down what they know
  double stop = 5;      ///< between SIGTERM and SIGKILL
  double grace = 30;    ///< to end in order after a signal
  double connect = 60;  ///< for a remote launcher to answer
  int signals = -1;     ///< a signalfd
  int control = -1;     ///< lines "signal N" from a launcher above; its end means that it is gone
};

struct Ended {
  int pid = -1;
  int status = -1;           ///< of waitpid; -1 when it had to be given up
  double after = 0;          ///< seconds since the start
  bool stopped = false;      ///< by us: not its own failure
  bool unreachable = false;  ///< a remote launcher that never answered
  bool chatters = false;     ///< nor came to an end of what it said instead
  std::string last_lines;    ///< of its stderr
  int code() const;          ///< 128 + signal, or the exit code
  bool failed() const { return status != 0; }
  int stop_signal() const;  ///< it ended because SIGINT or SIGTERM asked it to, and said so by its exit code
};

struct Outcome {
  std::vector<Ended> members;
  int first = -1;       ///< the member whose failure ended the rest
  int interrupted = 0;  ///< the signal that asked to end
};

/// Sent by the kernel when the process above dies.
inline constexpr int parent_died = 30;  // SIGPWR

/// The line by which a remote launcher says that it is there.
inline constexpr const char* remote_hello = "lockstep launcher ready\n";

Outcome supervise(const std::vector<Launched>& members, const Supervision& supervision, Console& console);

}  // namespace lockstep::dist
