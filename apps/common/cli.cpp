#include "apps/common/cli.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <vector>

#include "tensor/check.h"
#include "tensor/random.h"
#include "tensor/suggest.h"
#include "tensor/threads.h"

namespace apps {

namespace {

/// The subcommand that was given, or the program itself.
CLI::App& active(CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : active(*chosen.front());
}

std::string suggestion_for(CLI::App& app, std::string word) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  if (!word.starts_with("-")) {
    known.clear();
    for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) known.push_back(sub->get_name());
  }
  return lockstep::suggestion(word, known);
}

}  // namespace

CLI::Validator whole(int64_t least, int64_t most) {
  return CLI::Validator([=](std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return std::string();
    return lockstep::str("expected a whole number from ", least, " to ", most, ", got '", text, "'");
  }, "");
}

CLI::Validator number(double least, double most) {
  return CLI::Validator([=](std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == 0 && value >= least && value <= most) return std::string();
    return lockstep::str("expected a number from ", least, " to ", most, ", got '", text, "'");
  }, "");
}

int run_cli(CLI::App& app, int argc, char** argv) {
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    CLI::App& shown = active(app);
    std::cout << (&shown == &app ? app.help() : shown.help(app.get_name()));
    return 0;
  } catch (const CLI::Success& done) {  // --version
    std::cout << done.what() << "\n";
    return 0;
  } catch (const CLI::ParseError& error) {
    CLI::App& sub = active(app);
    const auto rest = sub.remaining(true);
    std::cerr << "error: ";
    if (&sub == &app && argc > 1 && argv[1][0] != '-') std::cerr << "unknown command '" << argv[1] << "'" << suggestion_for(app, argv[1]);
    else if (const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error); extras && !rest.empty()) std::cerr << "unknown option or argument '" << rest.front() << "'" << suggestion_for(sub, rest.front());
    else std::cerr << error.what();
    std::cerr << "\n" << "see: " << app.get_name() << (&sub == &app ? "" : " " + sub.get_name()) << " --help\n";
    return 2;
  } catch (const std::exception& error) {
    const std::string message = rank_prefix() + error.what();
    std::cerr << "error: " + message + "\n";
    write_error_file(message);
    return 1;
  }
  return 0;
}

void add_common_options(CLI::App& app, CommonOptions& o, bool training) {
  app.add_option("--seed", o.seed, "seed of everything random")->check(whole(0, INT64_MAX))->capture_default_str();
  app.add_option("--threads", o.threads, "threads of operations (default: all cores given to the process)")->check(whole(1, 4096));
  app.add_option("--device", o.device, "cpu; cuda (ranks of a machine take its devices in turn); cuda:N")->capture_default_str();
  app.add_flag("--json", o.json, "end with one line that is a JSON object of all final figures");
  if (!training) return;
  app.add_option("--out", o.out, "folder for metrics.jsonl, config.json and checkpoint.safetensors");
  app.add_flag("--resume", o.resume, "go on from the checkpoint in --out");
  app.parse_complete_callback([&o] {
    // Every rank looks before any of them can save: that takes all of them.
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (restarts && std::atoi(restarts) > 0 && !o.out.empty() && std::filesystem::exists(o.out + "/checkpoint.safetensors")) o.resume = true;
  });
  add_parallel_options(app, o.parallel);
}

lockstep::Device device_of(const CommonOptions& o, const Team& team) {
  lockstep::Device device = lockstep::parse_device(o.device);
  const int count = lockstep::device_count(device.type);
  if (o.device == "cuda" && count > 0) device.index = int16_t(team.local_rank() % count);
  lockstep::check_device("--device", device);
  return device;
}

void apply_common_options(const CommonOptions& o) {
  LOCKSTEP_CHECK(!o.resume || !o.out.empty(), "--resume needs --out DIR, the folder of the run to go on with");
  lockstep::parse_device(o.device);
  if (o.threads > 0) lockstep::set_threads(o.threads);
  lockstep::manual_seed(o.seed);
}

}  // namespace apps
