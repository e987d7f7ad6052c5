#pragma once
// `lockstep run`: starts the ranks of a job, watches them, and ends them together.
//
//   lockstep run ──fork──▶ supervisor ──fork, exec──▶ rank 0 ── what it forks
//   (passes signals on,     (output, signals,     ├──▶ rank 1      Whichever of these is killed, even with SIGKILL,
//    outlives it)            restarts, report)    └──▶ ...         those to its right are ended by those to its left.
//
// With hosts the supervisor starts `lockstep run` on each of them through ssh; the token goes through ssh's input.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "dist/launcher/cores.h"
#include "dist/launcher/hostfile.h"
#include "dist/launcher/output.h"
#include "dist/launcher/process.h"
#include "dist/launcher/supervisor.h"

namespace lockstep::dist {

struct LaunchOptions {
  std::vector<std::string> command;  ///< program and arguments
  int ranks = 1;                     ///< on this node
  int nodes = 1, node = 0;           ///< each node runs its own launcher
  std::vector<int> ranks_of_nodes;   ///< when they differ; empty: `ranks` on all
  std::string address;               ///< of rank 0; empty: this machine, or the first host
  int port = 0;                      ///< 0: a free one
  std::string job;                   ///< name of the run; empty: made of the time
  std::string role = "default";
  int max_restarts = 0;
  double restart_pause = 1;  ///< seconds before the first restart; doubles from one to the next, up to a minute

  std::string token;        ///< several nodes without hosts: the same secret everywhere
  std::vector<Host> hosts;  ///< not empty: through ssh
  bool force_ssh = false;   ///< also to a single host that is this machine
  int ssh_port = 0;
  std::vector<std::string> ssh_arguments;
  std::string devices;  ///< for CUDA_VISIBLE_DEVICES; empty: as it is

  std::string log_dir;
  std::string redirects, tee;  ///< as torchrun: 0 to 3, or RANK:VALUE,...; both empty with a log_dir: all is teed
  std::set<int> shown;         ///< local ranks whose output reaches the console; empty: all
  std::string prefix = "[rank ${rank}] ";
  bool quiet = false;  ///< no notices, only failures

  Binding binding = Binding::none;
  std::vector<int> cores;  ///< to bind to; empty: all that this process may use
  Supervision times;

  bool agent = false;    ///< started by another launcher: the rest of the job comes through stdin
  int attempt = 0;       ///< of the launcher above
  Environment exported;  ///< and what it wants to be set
};

/// Runs the job to its end; the exit code: 0, that of the first rank that failed, or 128 + signal. Error when it cannot
/// start. Call it from a process without other threads, and without children of its own.
int launch(LaunchOptions options);
/// Error when the options contradict each other or name what cannot be; launch() begins with it.
void check(const LaunchOptions& options);

// Its parts, for tests and for each other.

/// What one attempt of a job has in common.
struct Attempt {
  int number = 0;
  std::string address, token, job;
  int port = 0;
  std::string folder;  ///< holds a folder per rank
  bool keep = false;   ///< the folder is the user's
};

int world_size(const LaunchOptions& options);
int first_rank(const LaunchOptions& options);  ///< of this node
Environment rank_environment(const LaunchOptions& options, const Attempt& attempt, int local_rank,
                             const Environment& base, int threads);
/// Threads of a rank when OMP_NUM_THREADS does not say.
int threads_of_rank(int cores, int ranks);

/// A token from a file that nobody else can read.
std::string read_token(const std::string& file);

/// A port that was free a moment ago, kept from being given to somebody else until this object ends: bound, not
/// listened to.
class Port {
 public:
  /// Error "port N is used" at once when `wanted` is not 0.
  Port(const std::string& address, int wanted);
  int number() const { return number_; }

 private:
  int number_ = 0;
  Fd socket_;
};

/// ssh and its arguments that start this launcher on a host; or, for this machine, the launcher itself.
std::vector<std::string> agent_command(const LaunchOptions& options, const Attempt& attempt, int node,
                                       const std::string& launcher, const std::string& folder);
bool is_this_machine(const std::string& host);
/// What goes through its input: token, attempt, variables.
std::string agent_greeting(const LaunchOptions& options, const Attempt& attempt, const Environment& base);
/// The other end. Error when it does not come within `seconds`.
void read_greeting(LaunchOptions& options, double seconds);
std::string shell_quote(const std::string& text);

/// The member whose failure came first. Who ends first is not always that one: it may still have been writing down why,
/// while the others ended with the error that it told them.
int find_cause(const LaunchOptions& options, const Attempt& attempt, const Outcome& outcome);
/// What happened, for a person. Files of errors are looked up in attempt.folder.
std::string describe_failure(const LaunchOptions& options, const Attempt& attempt, const std::vector<Launched>& members,
                             const Outcome& outcome);
/// Text of an error file: plain, or JSON with "message".
std::string read_error_file(const std::string& file);

/// Runs `body` in a process of its own, in whose place this one stays: signals are passed on, and when it dies so does
/// everything below it. Its exit code. `body` gets a signalfd.
int guarded(const std::function<int(int signals)>& body);

}  // namespace lockstep::dist
