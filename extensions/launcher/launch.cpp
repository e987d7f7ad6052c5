// launch.cpp: checks the options of `lockstep run`, and runs attempts until one succeeds. See launch.h.
#include "extensions/launcher/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iomanip>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "dist/control.h"
#include "extensions/launcher/scratch.h"

namespace lockstep::dist {
namespace {

namespace fs = std::filesystem;
constexpr int default_port = 29500;  // used with several nodes, because they cannot agree on a free port
constexpr double greeting_time = 30;
// Longest pause between two attempts, in seconds. If an attempt ran longer than this, the pause after it is as short as
// the first one.
constexpr double longest_pause = 60;

/// A job name that differs from those of other runs of the same user.
std::string new_job() {
  const time_t now = time(nullptr);
  tm local{};
  localtime_r(&now, &local);
  return str(std::put_time(&local, "%Y-%m-%d_%H-%M-%S"), "_", getpid());
}

bool has_flight_records(const fs::path& folder) {
  std::error_code none;
  const auto is_record = [](const auto& entry) { return entry.path().filename().string().starts_with("flight-"); };
  return std::ranges::any_of(fs::recursive_directory_iterator(folder, none), is_record);
}

/// Runs the command again and again, until an attempt succeeds or the restarts are used up.
class Launch {
 public:
  Launch(const LaunchOptions& options, int signals) : o_(options), base_(this_environment()) {
    o_.times.signals = signals;
    o_.times.control = o_.agent ? STDIN_FILENO : -1;
    for (const auto& [name, value] : o_.exported) base_[name] = value;
  }

  int run() {
    prepare_folder();
    prepare_cores();
    int code = 0;
    double pause = o_.restart_pause;
    for (int number = o_.attempt;; ++number) {
      const double begun = steady_seconds();
      std::vector<Launched> members;
      const Attempt attempt = prepare(number, members);
      const Outcome outcome = supervise(members, o_.times, console_);
      port_.reset();
      code = finish(attempt, members, outcome);
      if (code == 0 || outcome.interrupted || o_.agent || number >= o_.max_restarts) break;
      if (steady_seconds() - begun > longest_pause) pause = o_.restart_pause;
      const std::string when = pause > 0 ? str(" in ", pause, " s") : "";
      console_.say("starting all ranks again", when, " (restart ", number + 1, " of ", o_.max_restarts, ")");
      if (const int signal = wait(pause)) {
        console_.say(signal_name(signal), ": not restarting");
        console_.hurry();
        code = 128 + signal;
        break;
      }
      pause = std::min(2 * pause, longest_pause);
    }
    console_.drain(o_.times.signals);
    if (code != 0 || !console_.lost()) return code;
    console_.say(console_.why_lost());
    console_.drain(o_.times.signals);
    return console_.lost_code();
  }

 private:
  /// Waits between two attempts; returns the signal that asked to stop in the meantime, or 0.
  int wait(double seconds) {
    const double until = steady_seconds() + seconds;
    for (double left = seconds; left > 0; left = until - steady_seconds()) {
      console_.pump();
      pollfd changes[2] = {{o_.times.signals, POLLIN, 0}, {console_.pending(), POLLOUT, 0}};
      poll(changes, 2, int(left * 1000) + 1);
      signalfd_siginfo info;
      while (read(o_.times.signals, &info, sizeof info) == ssize_t(sizeof info)) {
        const int signal = int(info.ssi_signo);
        if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == parent_died) return signal;
      }
    }
    return 0;
  }

  bool remote() const { return !o_.hosts.empty(); }
  bool logged(int local_rank, int stream) const {
    return redirects_.covers(local_rank, stream) || tee_.covers(local_rank, stream);
  }

  void notice(const auto&... parts) {
    if (!o_.quiet) console_.say(parts...);
  }

  void prepare_folder() {
    if (remote()) return;
    if (!o_.redirects.empty()) redirects_ = OutputStreams::parse(o_.redirects, o_.ranks, "--redirects");
    if (!o_.tee.empty()) tee_ = OutputStreams::parse(o_.tee, o_.ranks, "--tee");
    if (!o_.log_dir.empty()) {
      if (o_.redirects.empty() && o_.tee.empty()) tee_ = OutputStreams(3);
      folder_ = fs::absolute(o_.log_dir) / o_.job;
      // A new run on one node must not write into the folder of an earlier run with the same job name. Nodes of one run
      // share the folder.
      for (int i = 2; o_.nodes == 1 && !o_.agent && fs::exists(folder_); ++i)
        folder_ = fs::absolute(o_.log_dir) / str(o_.job, "-", i);
      return;
    }
    scratch_.emplace();
    folder_ = scratch_->path();
    if (!redirects_.any() && !tee_.any()) return;
    scratch_->keep(false);
    notice("logs are written to ", folder_.string(), " (--log-dir chooses)");
  }

  void prepare_cores() {
    if (remote()) return;
    std::vector<Core> cores = allowed_cores();
    if (!o_.cores.empty()) {
      for (const int core : o_.cores)
        LOCKSTEP_CHECK(std::any_of(cores.begin(), cores.end(), [&](const Core& c) { return c.id == core; }),
                       "[run] --bind-core-list names core ", core,
                       ", which this process may not use; name some of the ", cores.size(),
                       " that `taskset -cp $$` lists");
      std::erase_if(cores, [&](const Core& c) { return std::count(o_.cores.begin(), o_.cores.end(), c.id) == 0; });
    }
    cores_ = deal_cores(o_.binding, o_.ranks, cores);
    const bool set = base_.contains("OMP_NUM_THREADS") || base_.contains("LOCKSTEP_THREADS");
    if (o_.ranks > 1 && o_.binding == Binding::none && !set)
      notice("OMP_NUM_THREADS=", threads(0), " for each of ", o_.ranks, " ranks (", usable_cores(),
             " cores); set it to choose");
    for (int i = 0; o_.binding != Binding::none && i < o_.ranks; ++i)
      notice("rank ", first_rank(o_) + i, " runs on cores ", format_cores(cores_[size_t(i)]));
  }

  int threads(int local_rank) const {
    return o_.binding == Binding::none ? threads_of_rank(usable_cores(), o_.ranks)
                                       : int(cores_[size_t(local_rank)].size());
  }

  Attempt prepare(int number, std::vector<Launched>& members) {
    Attempt attempt{.number = number,
                    .address = o_.address,
                    .token = o_.token.empty() ? random_token() : o_.token,
                    .job = o_.job,
                    .port = o_.port,
                    .folder = (folder_ / ("attempt_" + std::to_string(number))).string(),
                    .keep = !scratch_ || scratch_->is_kept()};
    if (remote()) {
      attempt.folder.clear();
      const std::string launcher = fs::read_symlink("/proc/self/exe"), here = fs::current_path();
      for (int node = 0; node < int(o_.hosts.size()); ++node) {
        Process process{.name = "host " + o_.hosts[size_t(node)].name,
                        .argv = agent_command(o_, attempt, node, launcher, here),
                        .environment = base_,
                        .input = Input::pipe};
        process.environment.erase("LOCKSTEP_TOKEN");
        members.push_back({.process = process, .remote = true, .greeting = agent_greeting(o_, attempt, base_)});
      }
      return attempt;
    }
    if (o_.node == 0) {
      port_.emplace(o_.address, o_.port);
      attempt.port = port_->number();
    }
    std::vector<std::string> argv = o_.command;
    argv[0] = find_program(argv[0]);
    const bool single = world_size(o_) == 1;
    for (int i = 0; i < o_.ranks; ++i) {
      const int rank = first_rank(o_) + i;
      const fs::path folder = fs::path(attempt.folder) / std::to_string(rank);
      std::error_code failed;
      fs::create_directories(folder, failed);
      LOCKSTEP_CHECK(!failed, "[run] cannot make the folder ", folder.string(), ": ", failed.message(),
                     "; give --log-dir a folder that this user may write");
      fs::remove(folder / "error.json", failed);
      Launched member{.process = {.name = "rank " + std::to_string(rank),
                                  .argv = argv,
                                  .environment = rank_environment(o_, attempt, i, base_, threads(i)),
                                  .cores = cores_[size_t(i)]}};
      // A rank is in a background process group: reading from a terminal would stop it.
      if (rank == 0 && !o_.agent && !isatty(STDIN_FILENO)) member.process.input = Input::inherited;
      if (rank == 0 && console_.terminal(2)) member.process.environment["LOCKSTEP_TERMINAL"] = "1";
      else member.process.environment.erase("LOCKSTEP_TERMINAL");
      if (!single) member.prefix = line_prefix(o_.prefix, rank, i, o_.role);
      const bool listed = o_.ranks_filter.empty() || o_.ranks_filter.contains(i);
      const auto printed = [&](int stream) {
        return listed && (!redirects_.covers(i, stream) || tee_.covers(i, stream));
      };
      member.show_output = printed(1), member.show_error = printed(2);
      if (logged(i, 1)) member.output_file = folder / "stdout.log";
      if (logged(i, 2)) member.error_file = folder / "stderr.log";
      members.push_back(std::move(member));
    }
    return attempt;
  }

  int finish(const Attempt& attempt, const std::vector<Launched>& members, const Outcome& outcome) {
    const auto failed =
        std::find_if(outcome.members.begin(), outcome.members.end(), [](const Ended& e) { return e.failed(); });
    if (outcome.first >= 0) {
      console_.say(describe_failure(o_, attempt, members, outcome));
      if (scratch_ && has_flight_records(attempt.folder)) {
        scratch_->keep(true);
        console_.say("flight records: lockstep flight ", attempt.folder);
      }
      return outcome.members[size_t(find_cause(o_, attempt, outcome))].code();
    }
    // Ranks that were interrupted, or whose script went on after an error, have told it to nobody else.
    for (int i = 0; i < int(members.size()); ++i)
      if (const std::string error = error_of(o_, attempt, i); !error.empty() && said_.insert(error).second)
        console_.say(members[size_t(i)].process.name, ": error: ", error);
    if (failed == outcome.members.end()) return 0;
    return outcome.interrupted == SIGPIPE ? console_.lost_code()
           : outcome.interrupted          ? 128 + outcome.interrupted
                                          : failed->code();
  }

  LaunchOptions o_;
  Environment base_;
  Console console_;
  std::optional<ScratchFolder> scratch_;
  std::optional<Port> port_;
  fs::path folder_;
  OutputStreams redirects_, tee_;
  std::set<std::string> said_;  // errors of ranks that were printed
  std::vector<std::vector<int>> cores_;
};

}  // namespace

void check(const LaunchOptions& o) {
  LOCKSTEP_CHECK(!o.command.empty(),
                 "[run] expected a program to run, got none: lockstep run -n 4 -- PROGRAM ARGUMENTS");
  LOCKSTEP_CHECK(o.ranks >= 1 && o.ranks <= 4096, "[run] expected --nproc from 1 to 4096 ranks on a node, got ",
                 o.ranks);
  LOCKSTEP_CHECK(o.nodes >= 1 && o.nodes <= 65536, "[run] expected --nnodes from 1 to 65536 nodes, got ", o.nodes);
  LOCKSTEP_CHECK(o.node >= 0 && o.node < o.nodes, "[run] expected --node-rank from 0 to ", o.nodes - 1,
                 " (--nnodes is ", o.nodes, "), got ", o.node);
  LOCKSTEP_CHECK(o.max_restarts >= 0, "[run] expected --max-restarts of 0 or more, got ", o.max_restarts);
  LOCKSTEP_CHECK(o.restart_pause >= 0 && o.restart_pause <= longest_pause, "[run] expected --restart-pause from 0 to ",
                 longest_pause, " seconds, got ", o.restart_pause);
  LOCKSTEP_CHECK(o.port >= 0 && o.port <= 65535, "[run] expected --master-port from 0 (any) to 65535, got ", o.port);
  LOCKSTEP_CHECK(o.ranks_of_nodes.empty() || int(o.ranks_of_nodes.size()) == o.nodes,
                 "[run] expected --ranks-per-node with ", o.nodes, " numbers, one for each node, got ",
                 o.ranks_of_nodes.size());
  for (const int rank : o.ranks_filter)
    LOCKSTEP_CHECK(rank >= 0 && (rank < o.ranks || !o.hosts.empty()), "[run] --local-ranks-filter names local rank ",
                   rank, "; there are ranks 0 to ", o.ranks - 1, " here, name one of these");
  LOCKSTEP_CHECK(o.times.grace >= 0 && o.times.stop >= 0,
                 "[run] expected --grace and --stop-timeout of 0 or more seconds, got ", o.times.grace, " and ",
                 o.times.stop);
  for (const auto& [text, option] : {std::pair(&o.redirects, "--redirects"), std::pair(&o.tee, "--tee")}) {
    // With --hostfile, each host's launcher checks this option: hosts may have different numbers of ranks.
    if (!text->empty() && o.hosts.empty()) OutputStreams::parse(*text, o.ranks, option);
  }
  line_prefix(o.prefix, 0, 0, o.role);
  LOCKSTEP_CHECK(o.job.find('/') == std::string::npos && o.job != "." && o.job != ".." && o.job.size() < 128,
                 "[run] expected a name of at most 127 characters without / as --rdzv-id, got '", o.job, "'");
  if (o.nodes == 1 || !o.hosts.empty() || o.agent) return;
  LOCKSTEP_CHECK(!o.address.empty(),
                 "[run] expected --master-addr (or --rdzv-endpoint HOST:PORT), the address of node 0, with --nnodes ",
                 o.nodes);
  LOCKSTEP_CHECK(!o.token.empty(),
                 "[run] several nodes need a secret that they share: make one with "
                 "`head -c 32 /dev/urandom | xxd -p -c 64 > token; chmod 600 token`, copy it to each node, "
                 "and give --rdzv-conf token_file=token there (or LOCKSTEP_TOKEN); with --hostfile the launcher does "
                 "this through ssh");
  LOCKSTEP_CHECK(o.max_restarts == 0,
                 "[run] --max-restarts over several nodes needs one launcher that sees all of them: use --hostfile, or "
                 "leave it out");
}

int launch(LaunchOptions o) {
  check(o);
  if (o.agent) {
    read_greeting(o, greeting_time);
    [[maybe_unused]] const auto written = write(STDOUT_FILENO, remote_hello, std::strlen(remote_hello));
  }
  // A single host that is this machine needs no ssh.
  if (o.hosts.size() == 1 && is_this_machine(o.hosts[0].name) && !o.force_ssh) {
    o.ranks = int(o.hosts[0].slots.size());
    o.hosts.clear();
  }
  const bool several = o.nodes > 1 || o.hosts.size() > 1;
  if (!o.hosts.empty()) {
    const std::string& first = o.hosts[0].name;
    if (o.address.empty()) o.address = o.hosts.size() > 1 && is_this_machine(first) ? host_name() : first;
  } else if (several && !o.agent) {
    if (o.job.empty()) o.job = "lockstep";
  } else if (!o.agent) {
    o.token.clear();  // each attempt gets a new token
  }
  if (o.address.empty()) o.address = "127.0.0.1";
  if (several && o.port == 0) o.port = default_port;
  if (o.job.empty()) o.job = new_job();
  if (o.hosts.empty()) {
    // Report errors that can be detected in advance before anything starts.
    find_program(o.command[0]);
    if (o.node == 0) Port(o.address, o.port);
  }
  return guarded([&](int signals) { return Launch(o, signals).run(); });
}

}  // namespace lockstep::dist
