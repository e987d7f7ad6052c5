// Finds the user's program on the command line, starts it and watches it.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>

#include "apps/commands.h"
#include "base/check.h"
#include "dist/launcher/process.h"
#include "train/interrupt.h"

namespace apps {

using namespace lockstep::train;
using namespace lockstep;

namespace {

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

/// The last lines of a file, indented.
std::string last_lines(const std::filesystem::path& file, size_t count) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back("  " + line);
  std::string text;
  for (size_t i = lines.size() > count ? lines.size() - count : 0; i < lines.size(); ++i) text += lines[i] + "\n";
  return text;
}

}  // namespace

Program take_program(const CLI::App& app, const std::vector<std::string>& with_program,
                     std::vector<std::string>& words) {
  const std::string command = words.size() < 2 ? "" : words[1];
  size_t at = words.size();
  if (command == "run") at = program_of_run(*app.get_subcommand(command), words);
  else if (std::find(with_program.begin(), with_program.end(), command) != with_program.end())
    at = size_t(std::find(words.begin(), words.end(), "--") - words.begin());
  const bool dashes = at < words.size() && words[at] == "--";
  Program program(words.begin() + long(std::min(at + dashes, words.size())), words.end());
  words.resize(std::min(at, words.size()));
  return program;
}

void run_command(const std::string& who, const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 const std::filesystem::path& folder, double timeout) {
  const std::filesystem::path output = folder / "output.txt";
  std::vector<char*> argv;
  for (const std::string& arg : command) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
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
    dprintf(STDERR_FILENO, "%s: cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
  }
  close(out);
  LOCKSTEP_CHECK(child > 0, "no process can be started: ", strerror(errno),
                 "; end other processes, or raise the limit (ulimit -u)");
  const dist::Fd ended(int(syscall(SYS_pidfd_open, child, 0)));
  const double start = dist::monotonic_seconds();
  bool is_signaled = false, late = false;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) != child) {
    const double seconds = dist::monotonic_seconds() - start;
    if (seconds > timeout) late = true;
    if ((late || Interrupt::requested()) && !is_signaled)
      kill(child, SIGTERM), is_signaled = true;  // the launcher ends its ranks
    if (is_signaled && seconds > timeout + 40) kill(child, SIGKILL);
    pollfd entry{ended.get(), POLLIN, 0};
    poll(&entry, 1, 200);
  }
  LOCKSTEP_CHECK(!late, "the run took longer than --timeout ", timeout, " s; give a longer one");
  LOCKSTEP_CHECK(!Interrupt::requested(), "interrupted; run the command again");
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  LOCKSTEP_CHECK(code == 0, who, " failed with exit code ", code, "; its last lines:\n", last_lines(output, 20));
}

void refuse_given(const CLI::App& command, const std::vector<std::string>& options, const std::string& why) {
  for (const std::string& option : options) LOCKSTEP_CHECK(command.get_option(option)->count() == 0, option, why);
}

}  // namespace apps
