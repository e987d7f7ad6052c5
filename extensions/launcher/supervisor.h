#pragma once
// Supervises a set of processes that live and die together, until the last one has ended.
//
//   running ──one fails──▶ 1 s for the others to notice ──▶ SIGTERM ──5 s──▶ SIGKILL ──▶ clean up
//      └────── Ctrl-C ───▶ forwarded; 30 s to end cleanly, or a second Ctrl-C ──▶ SIGKILL ──▶ clean up
#include <memory>
#include <string>
#include <vector>

#include "extensions/launcher/output.h"
#include "extensions/launcher/process.h"

namespace lockstep::dist {

/// A process and the destinations of its output.
struct Launched {
  Process process;
  std::string prefix;
  bool show_output = true, show_error = true;
  std::string output_file, error_file;  ///< files for stdout and stderr; empty: no file
  /// True for a launcher on another host, started through ssh. The supervisor sends it signals as lines of text on
  /// stdin, and the launcher prints `remote_hello` once it is up.
  bool remote = false;
  std::string greeting;  ///< the first text that is written to the process's stdin
};

/// Time limits and event sources of a supervisor.
struct Supervision {
  double notice = 1;    ///< seconds for the other members to notice a failure and write their records
  double stop = 5;      ///< seconds between SIGTERM and SIGKILL
  double grace = 30;    ///< seconds to end cleanly after a signal
  double connect = 60;  ///< seconds for a remote launcher to answer
  int signals = -1;     ///< a signalfd
  int control = -1;     ///< agent: pipe from its launcher, with lines "signal N"; closed when that launcher ends
};

/// Describes how one supervised process ended.
struct Ended {
  int pid = -1;
  int status = -1;                             ///< status from waitpid(); -1 if the process could not be ended
  double after = 0;                            ///< seconds since the start
  bool stopped = false;                        ///< true if the supervisor ended it: not a failure of its own
  bool unreachable = false;                    ///< true for a remote launcher that never answered
  bool chatters = false;                       ///< true for a remote launcher that printed too much before its hello
  std::string last_lines;                      ///< the end of the member's stderr
  int code() const;                            ///< exit code, or 128 + signal
  bool failed() const { return status != 0; }  ///< true if the process ended with an error, or did not end
  int stop_signal() const;  ///< SIGINT or SIGTERM if the exit code says that this signal asked for the end; else 0
};

/// The result of supervise().
struct Outcome {
  std::vector<Ended> members;
  int first = -1;       ///< index of the member that failed first; -1: none
  int interrupted = 0;  ///< the signal that asked the job to end; 0: none
};

/// The line by which a remote launcher reports that it is up.
inline constexpr const char* remote_hello = "lockstep launcher ready\n";

/// Starts the members and supervises them to the end.
Outcome supervise(const std::vector<Launched>& members, const Supervision& supervision, Console& console);

}  // namespace lockstep::dist
