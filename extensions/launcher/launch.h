#pragma once
// `lockstep run`: starts the ranks of a job, watches them, and ends them together.
//
//   lockstep run ──fork──▶ supervisor ──fork, exec──▶ rank 0 ──▶ its own children
//   (forwards signals,     (output, signals,     ├──▶ rank 1
//    outlives the           restarts, report)    └──▶ ...
//    supervisor)
//
// If one of these processes is killed, even with SIGKILL, all processes to its right are ended too.
//
// With --hostfile, the supervisor starts `lockstep run --agent` on each host through ssh, and sends the token through
// ssh's stdin.
#include <set>
#include <string>
#include <vector>

#include "extensions/launcher/cores.h"
#include "extensions/launcher/hostfile.h"
#include "extensions/launcher/output.h"
#include "extensions/launcher/process.h"
#include "extensions/launcher/supervisor.h"

namespace lockstep::dist {

/// Options of `lockstep run`.
struct LaunchOptions {
  std::vector<std::string> command;  ///< program and arguments
  int ranks = 1;                     ///< number of ranks on this node
  int nodes = 1, node = 0;           ///< number of nodes, and this node's number; each node runs its own launcher
  std::vector<int> ranks_of_nodes;   ///< number of ranks of each node, if they differ; empty: `ranks` on all
  std::string address;               ///< address of rank 0; empty: this machine, or the first host
  int port = 0;                      ///< port of rank 0; 0: any free port
  std::string job;                   ///< name of the run; empty: made from the time
  std::string role = "default";
  int max_restarts = 0;
  double restart_pause = 1;  ///< seconds before the first restart; doubled for each further one, up to a minute

  std::string token;        ///< for several nodes without `hosts`: a secret, the same on all nodes
  std::vector<Host> hosts;  ///< if not empty, ranks are started on these hosts through ssh
  bool force_ssh = false;   ///< true: use ssh even for a single host that is this machine
  int ssh_port = 0;
  std::vector<std::string> ssh_arguments;
  std::string devices;  ///< value of CUDA_VISIBLE_DEVICES; empty: unchanged

  std::string log_dir;
  std::string redirects, tee;  ///< as in torchrun: 0 to 3, or RANK:VALUE,...; both empty with a log_dir: tee everything
  std::set<int> ranks_filter;  ///< local ranks whose output reaches the console; empty: all
  std::string prefix = "[rank ${rank}] ";
  bool quiet = false;  ///< true: print failures only, no notices

  Binding binding = Binding::none;
  std::vector<int> cores;  ///< cores to bind ranks to; empty: all cores of this process
  Supervision times;

  bool agent = false;    ///< true: another launcher started this one, and sends token and variables through stdin
  int attempt = 0;       ///< agent: attempt number of the launcher that started this one
  Environment exported;  ///< agent: variables that the launcher that started this one asks to set
};

/// Runs the job to its end and returns the exit code: 0, that of the first failed rank, or 128 + signal. Error when the
/// job cannot be started. The calling process must have no other threads and no children.
int launch(LaunchOptions options);
/// Error when the options contradict each other or are out of range. launch() calls it first.
void check(const LaunchOptions& options);

// The steps of launch(). They are declared here for tests, and because several source files define them.

/// The parameters of one attempt of a job.
struct Attempt {
  int number = 0;
  std::string address, token, job;
  int port = 0;
  std::string folder;  ///< contains a folder for each rank
  bool keep = false;   ///< true: the folder stays, because the user asked for it or for its logs
};

/// Number of ranks on all nodes.
int world_size(const LaunchOptions& options);
int first_rank(const LaunchOptions& options);  ///< global rank of this node's first rank
/// The environment of a local rank: `base`, and the variables that Lockstep, torchrun and DeepSpeed set.
Environment rank_environment(const LaunchOptions& options, const Attempt& attempt, int local_rank,
                             const Environment& base, int threads);
/// Default of OMP_NUM_THREADS for a rank.
int threads_of_rank(int cores, int ranks);

/// Reads a token from a file. Error when others can read the file, or its contents are no token.
std::string read_token(const std::string& file);

/// Reserves a free port until this object ends: the socket is bound, so that nobody else gets the port, but does not
/// listen.
class Port {
 public:
  /// `wanted`: the port, or 0 for any. Error when the port is in use, or `address` does not belong to this machine.
  Port(const std::string& address, int wanted);
  int number() const { return number_; }  ///< the reserved port

 private:
  int number_ = 0;
  Fd socket_;
};

/// The command that starts `lockstep run --agent` on host number `node`: through ssh, or directly on this machine.
std::vector<std::string> agent_command(const LaunchOptions& options, const Attempt& attempt, int node,
                                       const std::string& launcher, const std::string& folder);
/// True if `host` is this machine's name or a loopback address.
bool is_this_machine(const std::string& host);
/// The text that the launcher on another host reads from its stdin: token, attempt number, environment variables.
std::string agent_greeting(const LaunchOptions& options, const Attempt& attempt, const Environment& base);
/// Reads the text of agent_greeting() from stdin into `options`. Error when it does not arrive within `seconds`.
void read_greeting(LaunchOptions& options, double seconds);
/// Quotes a word for a POSIX shell, if needed.
std::string shell_quote(const std::string& text);

/// Index of the child process (a rank, or the launcher on a host) that failed first. It need not be the one that ended
/// first: while it still writes its error file, others may already end with the error that was reported to them.
int find_cause(const LaunchOptions& options, const Attempt& attempt, const Outcome& outcome);
/// The report of a failed attempt, for the user. Error files are looked up in attempt.folder.
std::string describe_failure(const LaunchOptions& options, const Attempt& attempt, const std::vector<Launched>& members,
                             const Outcome& outcome);
/// The text of a member's error file.
std::string error_of(const LaunchOptions& options, const Attempt& attempt, int member);
/// The text of an error file, which is plain text, or JSON with "message". Empty if there is none.
std::string read_error_file(const std::string& file);

}  // namespace lockstep::dist
