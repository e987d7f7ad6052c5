// `lockstep run`: takes the options of torchrun and of DeepSpeed's launcher, and starts the ranks by launch().
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "base/at_end.h"
#include "base/check.h"
#include "base/classic_text.h"
#include "base/environment.h"
#include "extensions/launcher/launch.h"
#include "extensions/launcher/programs/launcher_commands.h"
#include "extensions/launcher/scratch.h"
#include "train/cli.h"

namespace apps {

using namespace lockstep::train;

using lockstep::dist::Host;
namespace dist = lockstep::dist;

namespace {

struct Options {
  std::string nodes, ranks, backend = "c10d", endpoint, conf, launcher = "ssh", binding, core_list, hostfile, include,
                            exclude, filter, each_rank_log, ssh_arguments, ranks_per_node, start_method,
                            monitor_interval, local_address;
  int node = -1, num_nodes = 0, num_ranks = 0;
  bool standalone = false, no_python = false, bind = false, no_ssh = false, no_local_rank = false, save_pid = false;
  dist::LaunchOptions launch;
};

constexpr const char* default_hostfile = "/job/hostfile";

// Options of other launchers that are refused because `run` cannot do what they ask for, and the reasons.
constexpr std::pair<const char*, const char*> refused[] = {
    {"-m,--module",
     "there are no Python modules to run; for one, start Python itself: lockstep run -n 4 -- python3 -m MODULE"},
    {"--run-path",
     "there is no Python script to run; for one, start Python itself: lockstep run -n 4 -- python3 SCRIPT"},
    {"--virtual-local-rank", "leave it out: every rank sees its own LOCAL_RANK, by which a program chooses its device"},
    {"--elastic-training",
     "the number of ranks is fixed for a run; use --max-restarts, which starts all of them again after a failure"},
    {"--autotuning", "nothing is tuned by the launcher; vary the program's options instead"},
};

// Keys of torchrun's --rdzv-conf that have no effect here.
constexpr const char* idle_settings[] = {"read_timeout",        "last_call_timeout",      "close_timeout",
                                         "keep_alive_interval", "keep_alive_max_attempt", "is_host",
                                         "store_type",          "use_agent_store"};

int parsed_number(const std::string& text, const char* option, const char* expected) {
  const auto n = lockstep::read_number<int>(text);
  LOCKSTEP_CHECK(n, "[run] expected ", option, " to be ", expected, ", got '", text, "'");
  return *n;
}

std::vector<int> numbers(const std::string& text, const char* option) {
  std::vector<int> all;
  std::string item;
  for (std::istringstream in(text); std::getline(in, item, ',');)
    all.push_back(parsed_number(item, option, "numbers with commas between"));
  return all;
}

int nodes_of(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto number = [](const std::string& part) { return parsed_number(part, "--nnodes", "a number, or MIN:MAX"); };
  const int least = number(text.substr(0, colon)),
            greatest = colon < text.size() ? number(text.substr(colon + 1)) : least;
  LOCKSTEP_CHECK(least == greatest,
                 "[run] nodes cannot come and go during a run: expected --nnodes N, or N:N with equal numbers, got '",
                 text, "'");
  return least;
}

int ranks_of(const std::string& text) {
  if (text == "auto" || text == "cpu") return dist::usable_cores();
  LOCKSTEP_CHECK(text != "gpu",
                 "[run] this build cannot count GPUs: expected --nproc to be a number, auto or cpu, got 'gpu'");
  const int n = parsed_number(text, "--nproc", "a number, auto or cpu");
  LOCKSTEP_CHECK(n >= 1, "[run] expected --nproc of 1 or more, got ", n);
  return n;
}

/// Parses HOST, HOST:PORT or [IPV6]:PORT.
void set_endpoint(const std::string& text, std::string& address, int& port) {
  const size_t colon = text.rfind(':'), bracket = text.find(']');
  const bool bare_ipv6 = text.find(':') != colon && bracket == std::string::npos;
  const bool has_port = colon != std::string::npos && !bare_ipv6 && (bracket == std::string::npos || bracket < colon);
  std::string host = has_port ? text.substr(0, colon) : text;
  if (host.starts_with("[") && host.ends_with("]")) host = host.substr(1, host.size() - 2);
  LOCKSTEP_CHECK(!host.empty(), "[run] expected --rdzv-endpoint to be HOST:PORT, got '", text, "'");
  LOCKSTEP_CHECK(address.empty() || address == host, "[run] expected one address of rank 0, got --master-addr ",
                 address, " and --rdzv-endpoint ", text);
  address = host;
  if (!has_port) return;
  const int given = parsed_number(text.substr(colon + 1), "--rdzv-endpoint", "HOST:PORT");
  LOCKSTEP_CHECK(port == 0 || port == given, "[run] expected one port of rank 0, got --master-port ", port,
                 " and --rdzv-endpoint ", text);
  port = given;
}

/// Writes the launcher's process id to a file. Returns its path.
std::string write_pid_file() {
  const std::string path = dist::temporary_folder() + "/" + std::to_string(getpid()) + ".lockstep";
  // The folder is writable by everybody: never follow a link or write to someone else's file. A file of our own with
  // this name was left by a process that has ended.
  const auto make = [&] {
    return dist::Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  };
  dist::Fd file = make();
  struct stat there;
  if (!file && errno == EEXIST && lstat(path.c_str(), &there) == 0 && S_ISREG(there.st_mode) &&
      there.st_uid == geteuid() && unlink(path.c_str()) == 0)
    file = make();
  LOCKSTEP_CHECK(file, "[run] --save-pid cannot make ", path, ": ", std::strerror(errno),
                 "; check the folder, or leave out --save-pid");
  const std::string text = std::to_string(getpid()) + "\n";
  LOCKSTEP_CHECK(write(file.get(), text.data(), text.size()) == ssize_t(text.size()), "[run] --save-pid cannot write ",
                 path, "; free space there, or leave out --save-pid");
  std::cerr << "lockstep run: pid " << getpid() << " is in " << path << "\n";
  return path;
}

void read_options(Options& o, const Program& program) {
  dist::LaunchOptions& l = o.launch;
  const auto notice = [&](const std::string& text) {
    if (!l.quiet) std::cerr << "lockstep run: " << text << std::endl;
  };
  l.command = program;
  l.node = std::max(0, o.node);

  if (!o.monitor_interval.empty()) notice("--monitor-interval has no effect: ends of ranks are noticed at once");
  if (!o.start_method.empty()) notice("--start-method has no effect: ranks are programs of their own");
  if (!o.local_address.empty()) notice("--local-addr has no effect: LOCKSTEP_INTERFACE chooses the network of ranks");
  LOCKSTEP_CHECK(o.launcher == "ssh", "[run] expected --launcher ssh, got '", o.launcher, "'; with ",
                 o.launcher == "slurm" ? "srun" : "mpirun",
                 " start the program itself: it finds its rank in the environment");
  LOCKSTEP_CHECK(o.backend == "static" || o.backend == "c10d",
                 "[run] expected --rdzv-backend c10d or static (the meeting point is rank 0), got '", o.backend, "'");

  std::istringstream settings(o.conf);
  for (std::string setting; std::getline(settings, setting, ',');) {
    const size_t equals = std::min(setting.find('='), setting.size());
    const std::string key = setting.substr(0, equals), value = setting.substr(std::min(equals + 1, setting.size()));
    if (key == "token_file") l.token = dist::read_token(value);
    else if (key == "timeout" || key == "join_timeout") {
      LOCKSTEP_CHECK(parsed_number(value, "timeout in --rdzv-conf", "whole seconds") > 0,
                     "[run] expected a timeout above 0 in --rdzv-conf, got ", value);
      l.exported["LOCKSTEP_TIMEOUT"] = value;
    } else if (key == "rank") o.node = l.node = parsed_number(value, "rank in --rdzv-conf", "the number of this node");
    else if (std::count(std::begin(idle_settings), std::end(idle_settings), key))
      notice(key + " in --rdzv-conf has no effect");
    else
      lockstep::fail(lockstep::str("[run] expected token_file, timeout or rank in --rdzv-conf, got '", setting, "'"));
  }
  if (l.token.empty()) l.token = lockstep::environment("LOCKSTEP_TOKEN").value_or("");

  l.nodes = o.nodes.empty() ? 1 : nodes_of(o.nodes);
  LOCKSTEP_CHECK(!o.standalone || l.nodes == 1, "[run] --standalone is for one node, got --nnodes ", o.nodes,
                 "; leave out one of the two");
  if (o.standalone && !o.endpoint.empty()) notice("--standalone: --rdzv-endpoint has no effect");
  else if (!o.endpoint.empty()) set_endpoint(o.endpoint, l.address, l.port);

  LOCKSTEP_CHECK(o.each_rank_log.empty() || (l.log_dir.empty() && l.redirects.empty()),
                 "[run] --enable-each-rank-log is --log-dir and --redirects in one; leave those out");
  if (!o.each_rank_log.empty()) l.log_dir = o.each_rank_log, l.redirects = "3";
  for (const int rank : numbers(o.filter, "--local-ranks-filter")) l.ranks_filter.insert(rank);
  LOCKSTEP_CHECK(o.core_list.empty() || o.bind || !o.binding.empty() || l.agent,
                 "[run] --bind-core-list needs --bind-cores-to-rank or --numa-binding; add one of the two");
  LOCKSTEP_CHECK(!o.bind || o.binding.empty(), "[run] expected --bind-cores-to-rank or --numa-binding, got both");
  if (o.bind) l.binding = dist::Binding::cores;
  if (!o.binding.empty()) l.binding = dist::parse_binding(o.binding);
  if (!o.core_list.empty()) l.cores = dist::parse_cores(o.core_list);
  std::istringstream ssh_arguments(o.ssh_arguments);
  for (std::string word; ssh_arguments >> word;) l.ssh_arguments.push_back(word);

  // Find the hosts: those of a hostfile, or this machine. Then apply the filters and limits of the options.
  std::error_code none;
  const bool filtered = !o.include.empty() || !o.exclude.empty(), limited = o.num_nodes > 0 || o.num_ranks > 0;
  LOCKSTEP_CHECK(!filtered || !limited,
                 "[run] expected --include and --exclude, or --num-nodes and --num-gpus, got both kinds");
  LOCKSTEP_CHECK(o.num_ranks == 0 || o.ranks.empty(), "[run] expected --nproc or --num-gpus, got both");
  LOCKSTEP_CHECK(o.num_nodes == 0 || o.nodes.empty(), "[run] expected --nnodes or --num-nodes, got both");
  if (o.hostfile.empty() && !l.agent && o.ranks.empty() && o.nodes.empty() && !o.standalone &&
      std::filesystem::exists(default_hostfile, none)) {
    o.hostfile = default_hostfile;
    notice(std::string("hosts are those of ") + default_hostfile);
  }
  if (!o.hostfile.empty() || filtered || limited || l.force_ssh) {
    std::vector<Host> hosts;
    if (!o.hostfile.empty()) hosts = dist::read_hostfile(o.hostfile);
    else {
      LOCKSTEP_CHECK(
          o.nodes.empty(),
          "[run] expected --nnodes (starts this node's ranks), or --include, --exclude, --num-nodes, "
          "--num-gpus and --force-multi (choose hosts and start them), got both; give one kind, or --hostfile");
      int slots = dist::usable_cores();
      if (!o.ranks.empty() && !filtered) slots = std::max(slots, ranks_of(o.ranks));
      slots = std::max(slots, o.num_ranks);  // ranks may share cores
      hosts = {{"localhost", {}}};
      for (int slot = 0; slot < slots; ++slot) hosts[0].slots.push_back(slot);
    }
    hosts = dist::filter_hosts(hosts, o.include, o.exclude);
    const bool all = o.ranks.empty() || o.ranks == "auto";
    hosts = dist::limit_hosts(hosts, o.nodes.empty() ? o.num_nodes : l.nodes, all ? o.num_ranks : ranks_of(o.ranks));
    const bool chosen = filtered || o.num_ranks > 0;
    if (chosen && std::getenv("CUDA_VISIBLE_DEVICES")) notice("CUDA_VISIBLE_DEVICES is replaced by the slots chosen");
    if (o.no_ssh) {
      LOCKSTEP_CHECK(o.node >= 0 && o.node < int(hosts.size()), "[run] expected --node-rank from 0 to ",
                     hosts.size() - 1, " with --no-ssh, got ", o.node < 0 ? "none" : std::to_string(o.node));
      for (const Host& host : hosts) l.ranks_of_nodes.push_back(int(host.slots.size()));
      l.nodes = int(hosts.size()), l.ranks = l.ranks_of_nodes[size_t(l.node)];
      if (l.address.empty()) l.address = hosts[0].name;
    } else {
      LOCKSTEP_CHECK(
          o.node < 0,
          "[run] the launcher starts all hosts itself: leave out --node-rank, or add --no-ssh and start this "
          "command on each host");
      l.hosts = hosts, l.nodes = 1;
    }
    if (chosen) l.devices = fmt::format("{}", fmt::join(hosts[o.no_ssh ? size_t(l.node) : 0].slots, ","));
  } else {
    l.ranks = o.ranks.empty() ? 1 : ranks_of(o.ranks);
    l.ranks_of_nodes = numbers(o.ranks_per_node, "--ranks-per-node");
    LOCKSTEP_CHECK(l.nodes == 1 || o.node >= 0, "[run] expected --node-rank, from 0 to ", l.nodes - 1,
                   ", the number of this node, with --nnodes ", l.nodes);
    LOCKSTEP_CHECK(!o.no_ssh || l.nodes > 1, "[run] --no-ssh needs --nnodes or a --hostfile; add one of them");
  }
}

/// Returns the index in run's command line where the user's program begins. Replaces _ by - in the options before it.
size_t program_of_run(const CLI::App& run, std::vector<std::string>& words) {
  size_t at = 2;
  for (; at < words.size(); ++at) {
    std::string& word = words[at];
    if (word == "--" || word.size() < 2 || word[0] != '-') break;
    const size_t equals = std::min(word.find('='), word.size());
    if (word.starts_with("--")) std::replace(word.begin() + 2, word.begin() + long(equals), '_', '-');
    const bool is_short = word[1] != '-';
    const CLI::Option* option = run.get_option_no_throw(is_short ? word.substr(0, 2) : word.substr(0, equals));
    if (!option) {  // an unknown option: the next word may be its value or the program
      words.resize(at + 1);
      return words.size();
    }
    const bool has_value = is_short ? word.size() > 2 : equals < word.size();
    if (option->get_items_expected_max() > 0 && !has_value) ++at;
  }
  return std::min(at, words.size());
}

}  // namespace

void add_run_command(CLI::App& app, Shared& shared) {
  shared.program_start.emplace("run", program_of_run);
  CLI::App& sub = *app.add_subcommand("run", "start a program on many ranks, watch them, and end them together");
  const auto options = std::make_shared<Options>();
  Options& o = *options;
  dist::LaunchOptions& l = o.launch;
  sub.footer(
      "lockstep run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n\nNames may be written with _ for -, and torchrun's options "
      "be given as PET_NNODES, PET_MAX_RESTARTS, ...");
  const auto option = [&](const char* names, auto& value, const char* help, const char* variable = "") {
    CLI::Option* made;
    if constexpr (std::is_same_v<decltype(value), bool&>) made = sub.add_flag(names, value, help);
    else made = sub.add_option(names, value, help);
    return *variable ? made->envname(std::string("PET_") + variable) : made;
  };
  const auto group = [&](const char* name) { sub.option_defaults()->group(name); };  // for the options that follow
  group("Ranks");
  option("-n,--nproc,--nproc-per-node", o.ranks, "ranks on this node: a number; auto or cpu: one a core",
         "NPROC_PER_NODE")
      ->type_name("N");
  option("--max-restarts", l.max_restarts, "restart all ranks after a failure, at most N times", "MAX_RESTARTS");
  sub.add_option("--restart-pause", l.restart_pause,
                 "seconds before the first restart; twice as many before the next, up to 60")
      ->capture_default_str();
  option("--role", l.role, "name for --log-line-prefix-template", "ROLE");
  option("--bind-cores-to-rank", o.bind, "give every rank its own equal part of the cores");
  option("--bind-core-list", o.core_list, "the cores to bind to, such as 0-3,8")->type_name("CORES");
  option("--numa-binding", o.binding, "give every rank its node, socket, exclusive (part of a node) or core-complex",
         "NUMA_BINDING");
  sub.add_option("--grace", l.times.grace, "seconds that ranks have to end after Ctrl-C")->capture_default_str();
  sub.add_option("--stop-timeout", l.times.stop, "seconds between SIGTERM and SIGKILL when a rank has failed")
      ->capture_default_str();
  option("-q,--quiet", l.quiet, "no notices, only failures");
  group("Output");
  option("--log-dir", l.log_dir, "DIR/RUN/attempt_0/RANK/{stdout,stderr}.log", "LOG_DIR")->type_name("DIR");
  option("-r,--redirects", l.redirects, "to files only: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:VALUE,...",
         "REDIRECTS");
  option("-t,--tee", l.tee, "to files and here (the default with --log-dir: 3)", "TEE");
  option("--local-ranks-filter", o.filter, "show only these local ranks, such as 0,1", "LOCAL_RANKS_FILTER");
  option("--log-line-prefix-template", l.prefix, "with ${rank}, ${local_rank}, ${role_name}; default '[rank ${rank}] '",
         "LOG_LINE_PREFIX_TEMPLATE");
  option("--enable-each-rank-log", o.each_rank_log, "as --log-dir DIR --redirects 3")->type_name("DIR");
  group("Several nodes, a launcher on each");
  option("--nnodes", o.nodes, "number of nodes (1)", "NNODES")->type_name("N");
  option("--node-rank", o.node, "number of this node", "NODE_RANK");
  option("--master-addr", l.address, "address of node 0", "MASTER_ADDR");
  option("--master-port", l.port, "port of rank 0; 0: any free one (one node), 29500 (several)", "MASTER_PORT");
  option("--rdzv-endpoint", o.endpoint, "HOST:PORT instead of the two above", "RDZV_ENDPOINT");
  option("--rdzv-backend", o.backend, "c10d or static, which are the same here: rank 0 is the meeting point",
         "RDZV_BACKEND");
  option("--rdzv-id", l.job, "name of the run; processes of other runs are refused", "RDZV_ID");
  option("--rdzv-conf", o.conf, "KEY=VALUE,...: token_file, timeout (seconds), rank", "RDZV_CONF");
  option("--standalone", o.standalone, "one node with a free port, which is the default", "STANDALONE");
  group("Several hosts through ssh");
  option("-H,--hostfile", o.hostfile, "lines 'host slots=N' (default: /job/hostfile, if there is one)")
      ->type_name("FILE");
  option("-i,--include", o.include, "only these: NAME[:SLOT[,SLOT...]][@NAME...]");
  option("-e,--exclude", o.exclude, "all but these");
  sub.add_option("--num-nodes", o.num_nodes, "the first N hosts")->check(CLI::PositiveNumber);
  sub.add_option("--num-gpus,--num-accelerators", o.num_ranks,
                 "the first N slots of each host; N ranks here without a hostfile")
      ->check(CLI::Range(1, 4096));
  option("--force-multi", l.force_ssh, "ssh even to a single host that is this machine");
  option("--no-ssh", o.no_ssh, "start this node's part only (with --node-rank)");
  sub.add_option("--ssh-port", l.ssh_port, "")->check(CLI::Range(1, 65535));
  sub.add_option("--connect-timeout", l.times.connect, "seconds for a host to answer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  option("--launcher", o.launcher, "ssh, the only one");
  option("--launcher-args", o.ssh_arguments, "more arguments of ssh");
  option("--save-pid", o.save_pid, "write the launcher's pid to a file in the folder for temporary files");
  group("Accepted without effect");
  option("--no-python", o.no_python, "programs are started as they are", "NO_PYTHON");
  option("--no-local-rank", o.no_local_rank, "no --local_rank is added to the program's arguments");
  option("--monitor-interval", o.monitor_interval, "ends of ranks are noticed at once", "MONITOR_INTERVAL");
  option("--start-method", o.start_method, "ranks are programs of their own", "START_METHOD");
  option("--local-addr", o.local_address, "use LOCKSTEP_INTERFACE", "LOCAL_ADDR");
  group("");  // hidden
  option("--agent", l.agent, "");
  option("--ranks-per-node", o.ranks_per_node, "");
  option("--devices", l.devices, "");
  for (const auto& [names, why] : refused) {
    const std::string name = std::string(names).substr(std::string(names).rfind("--")), text = why;
    sub.add_flag_callback(
        names, [name, text] { throw CLI::ValidationError(name, text); }, "");
  }
  sub.callback([options, &program = shared.program] {
    as_usage([&] {
      read_options(*options, program);
      dist::check(options->launch);
    });
    const std::string pid_file = options->save_pid ? write_pid_file() : "";
    const lockstep::AtEnd removes([&] { unlink(pid_file.c_str()); });
    if (const int code = dist::launch(options->launch)) throw CLI::RuntimeError(code);
  });
}

}  // namespace apps
