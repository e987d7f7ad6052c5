// Launchers on other hosts: the ssh command that starts them, and the greeting that passes secrets through ssh's input,
// since every user of a host can read command lines.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/check.h"
#include "base/clock.h"
#include "extensions/launcher/launch.h"

namespace lockstep::dist {
namespace {

// Environment variables that are copied to the ranks on other hosts: all names with these prefixes, and these names.
constexpr const char* exported_prefixes[] = {"LOCKSTEP_", "OMP_",      "GOMP_", "KMP_",   "NCCL_",
                                             "UCX_",      "OMPI_MCA_", "DNNL_", "ONEDNN_"};
constexpr const char* exported_names[] = {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"};
constexpr size_t longest_greeting = size_t(1) << 20;

std::string with_commas(const auto& numbers) { return fmt::format("{}", fmt::join(numbers, ",")); }

bool is_exported(const std::string& name) {
  if (name == "LOCKSTEP_TOKEN" || name == "LOCKSTEP_TERMINAL") return false;
  return std::ranges::count(exported_names, name) > 0 ||
         std::ranges::any_of(exported_prefixes, [&](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::string shell_quote(const std::string& text) {
  if (!text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%") ==
          std::string::npos)
    return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool is_this_machine(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == host_name();
}

std::vector<std::string> agent_command(const LaunchOptions& o, const Attempt& attempt, int node,
                                       const std::string& launcher, const std::string& folder) {
  const Host& host = o.hosts[size_t(node)];
  std::vector<int> counts;
  for (const Host& one : o.hosts) counts.push_back(int(one.slots.size()));
  std::vector<std::string> run = {launcher, "run", "--agent"};
  const auto give = [&](const char* option, const auto& value) { run.insert(run.end(), {option, str(value)}); };
  give("--nnodes", o.hosts.size()), give("--node-rank", node), give("--ranks-per-node", with_commas(counts));
  give("--nproc", host.slots.size()), give("--master-addr", attempt.address), give("--master-port", attempt.port);
  give("--rdzv-id", attempt.job), give("--role", o.role), give("--log-line-prefix-template", o.prefix);
  give("--grace", o.times.grace), give("--stop-timeout", o.times.stop);
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) give(option, value);
  };
  add("--log-dir", o.log_dir), add("--redirects", o.redirects), add("--tee", o.tee);
  add("--local-ranks-filter", with_commas(o.ranks_filter));
  if (!o.devices.empty()) add("--devices", with_commas(host.slots));
  if (o.binding == Binding::cores) run.push_back("--bind-cores-to-rank");
  for (const auto& [binding, name] : numa_bindings)
    if (o.binding == binding) give("--numa-binding", name);
  add("--bind-core-list", format_cores(o.cores));
  if (o.quiet) run.push_back("--quiet");
  run.push_back("--");
  run.insert(run.end(), o.command.begin(), o.command.end());
  if (!o.force_ssh && is_this_machine(host.name)) return run;

  std::string line = "cd " + shell_quote(folder) + " && exec";
  for (const std::string& word : run) line += " " + shell_quote(word);
  // ssh must never ask questions (BatchMode): nobody is there to answer.
  std::vector<std::string> ssh = {
      find_program("ssh"), "-T", "-o",
      "BatchMode=yes",     "-o", "ConnectTimeout=" + std::to_string(std::max(1, int(o.times.connect)))};
  if (o.ssh_port > 0) ssh.insert(ssh.end(), {"-p", std::to_string(o.ssh_port)});
  ssh.insert(ssh.end(), o.ssh_arguments.begin(), o.ssh_arguments.end());
  ssh.insert(ssh.end(), {"--", host.name, line});
  return ssh;
}

std::string agent_greeting(const LaunchOptions& o, const Attempt& attempt, const Environment& base) {
  std::string text = str("token ", attempt.token, "\nattempt ", attempt.number, "\nrestarts ", o.max_restarts, "\n");
  for (const auto& [name, value] : base)
    if (is_exported(name) && value.find('\n') == std::string::npos) text += "env " + name + "=" + value + "\n";
  return text + "go\n";
}

void read_greeting(LaunchOptions& o, double seconds) {
  const double deadline = steady_seconds() + seconds;
  std::string line;
  for (size_t total = 0; total < longest_greeting; ++total) {
    pollfd ready{STDIN_FILENO, POLLIN, 0};
    const double left = deadline - steady_seconds();
    LOCKSTEP_CHECK(left > 0 && poll(&ready, 1, int(left * 1000) + 1) >= 0,
                   "[run] --agent: the launcher that started this one sent no complete greeting within ", seconds,
                   " s; --agent is for launchers only: leave it out");
    if (!ready.revents) continue;
    char c;  // read byte by byte: later lines are for the supervisor
    const ssize_t got = read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    LOCKSTEP_CHECK(
        got == 1,
        "[run] --agent: the launcher that started this one is gone; --agent is for launchers only: leave it out");
    if (c != '\n') {
      line += c;
      continue;
    }
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string key = line.substr(0, blank), value = line.substr(std::min(blank + 1, line.size()));
    if (key == "token") o.token = value;
    else if (key == "attempt") o.attempt = std::atoi(value.c_str());
    else if (key == "restarts") o.max_restarts = std::atoi(value.c_str());
    else if (key == "env" && value.find('=') != std::string::npos)
      o.exported[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
    else if (key == "go") return;
    else
      fail(str("[run] --agent: expected token, attempt, restarts, env or go, got '", key,
               "'; install the same version of lockstep on all hosts"));
    line.clear();
  }
  fail("[run] --agent: the launcher that started this one sent a greeting of more than 1 MiB; unset large variables");
}

}  // namespace lockstep::dist
