// Runs a program's command line: prepares the process, parses, and turns errors into exit codes. See cli.h.
#include "train/cli.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <vector>

#include "base/check.h"
#include "base/environment.h"
#include "base/output_file.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "dist/schedule.h"

namespace lockstep::train {

namespace {

/// The chosen subcommand, or the program itself.
CLI::App& active(CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : active(*chosen.front());
}

std::string suggestion_for(CLI::App& app, std::string word) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  if (!word.starts_with("-"))
    for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) known.push_back(sub->get_name());
  else
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return suggestion(word, known);
}

/// Opens /dev/null in place of missing descriptors 0, 1 and 2. Otherwise the next file that is opened could get the
/// number 1, and standard output would go into this file.
void open_standard_streams() {
  for (const int fd : {0, 1, 2})
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) std::_Exit(1);
}

/// Checks shell limits that would kill the process without a message.
void check_limits() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that exceeds the size limit then gives an Error that names it
  constexpr rlim_t needed = 1 << 20, wanted = 8 << 20;
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= needed) return;
  stack.rlim_cur = std::min(stack.rlim_max, wanted);
  LOCKSTEP_CHECK(stack.rlim_cur >= needed && setrlimit(RLIMIT_STACK, &stack) == 0,
                 "the stack of this process is limited to ", stack.rlim_cur / 1024, " KiB, expected ", needed / 1024,
                 " KiB or more; raise the limit: ulimit -s ", wanted / 1024);
  pthread_attr_t attributes;  // at its start the process took the stack size of new threads from the old limit
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t(stack.rlim_cur));
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

/// Flushes standard output. Returns `code`, or 1 if the output could not be written.
int finished(int code) {
  errno = 0;
  std::cout.flush();
  const bool written = std::cout && std::fflush(stdout) == 0 && !std::ferror(stdout);
  if (written) return code;
  const std::string why = errno || write(STDOUT_FILENO, "\n", 1) < 0
                              ? std::strerror(errno)
                              : "an earlier write failed";  // the errno of that write is lost
  std::cerr << "error: " << rank_prefix() << "standard output cannot be written (" << why
            << "), so the rest of the output is lost; redirect it to a file with free space\n";
  return code ? code : 1;
}

int run_parsed(CLI::App& app, int argc, char** argv) {
  const bool has_commands = !app.get_subcommands([](const CLI::App*) { return true; }).empty();
  if (has_commands) app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  try {
    check_limits();
    as_usage([] {
      check_environment();
      if (const auto name = environment("LOCKSTEP_ALGORITHM")) dist::parse_algorithm(*name, "LOCKSTEP_ALGORITHM");
    });
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    CLI::App& active_app = active(app);
    std::cout << (&active_app == &app ? app.help() : active_app.help(app.get_name()));
    return 0;
  } catch (const CLI::Success& done) {  // thrown for --version
    std::cout << done.what() << "\n";
    return 0;
  } catch (const CLI::RuntimeError& ended) { return ended.get_exit_code(); } catch (const CLI::ParseError& error) {
    CLI::App& sub = active(app);
    const auto rest = sub.remaining(true);
    std::string text = error.what();
    if (has_commands && &sub == &app && argc > 1 && argv[1][0] != '-')
      text = str("unknown command '", argv[1], "'", suggestion_for(app, argv[1]));
    else if (const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error); extras && !rest.empty())
      text = str("unknown option or argument '", rest.front(), "'", suggestion_for(sub, rest.front()));
    text += str("\nsee: ", app.get_name(), &sub == &app ? "" : " " + sub.get_name(), " --help");
    return report_error(UsageError(text));
  } catch (const Stopped& stopped) { return 128 + stopped.signal; } catch (const std::exception& error) {
    return report_error(error, rank_prefix());
  }
  return 0;
}

}  // namespace

int run_cli(CLI::App& app, int argc, char** argv) {
  open_standard_streams();
  return finished(run_parsed(app, argc, argv));
}

int run_cli(CLI::App& app, std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return run_cli(app, int(arguments.size()), arguments.data());
}

std::string identity_of(const CLI::App& subcommand) {
  return "build=" + build_id() + "\ncommand=" + subcommand.get_name() + "\n" + subcommand.config_to_str(true);
}

void write_output(const std::string& path, const std::string& text) {
  if (!OutputFile(path, true).add(text))
    fail(str(path, ": cannot be written: ", std::strerror(errno), "; free disk space"));
}

void prepare_output(const std::string& option, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, option, " ", folder, ": cannot make this folder: ", error.message(), "; choose another");
  std::string trial = folder + "/.lockstep-XXXXXX";
  const int fd = mkstemp(trial.data());
  LOCKSTEP_CHECK(fd >= 0, option, " ", folder, ": cannot write there: ", std::strerror(errno), "; choose another");
  close(fd);
  unlink(trial.c_str());
}

void print_result(const data::Json& result, bool json) {
  if (json) return void(std::cout << result.dump() << std::endl);
  std::string line;
  for (const auto& [key, value] : result.as_object()) {
    if (!line.empty()) line += ", ";
    line += key + " " +
            (value.is_int()      ? std::to_string(value.as_int())
             : value.is_number() ? fmt::format("{:.4g}", value.as_number())
             : value.is_string() ? value.as_string()
                                 : value.dump());
  }
  std::cout << line << std::endl;
}

}  // namespace lockstep::train
