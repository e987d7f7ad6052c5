// Adds the commands of the extension launcher; `lockstep new` and `lockstep flight` are short enough to be here.
#include "extensions/launcher/programs/launcher_commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/check.h"
#include "base/classic_text.h"
#include "extensions/launcher/launcher.h"
#include "extensions/launcher/new_project.h"
#include "train/cli.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using train::OptionGroup;

static void write_project(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string(), placeholder = "my_project";
  const auto in_names = [](char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; };
  train::as_usage([&] {
    LOCKSTEP_CHECK(!name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), in_names),
                   "[new] expected a name of letters, digits, - and _ that begins with a letter, got '", name, "'");
  });
  LOCKSTEP_CHECK(!std::filesystem::exists(folder), "[new] ", folder.string(),
                 " exists already: choose another name, or remove it");
  std::filesystem::create_directories(folder);
  for (const auto& [file, text] : project_files) {
    std::string own(text);
    for (size_t at = 0; (at = own.find(placeholder, at)) != std::string::npos; at += name.size())
      own.replace(at, placeholder.size(), name);
    train::write_output((folder / file).string(), own);
  }
  fmt::print("{}: main.cpp, meson.build, CMakeLists.txt, README.md\n\n", folder.string());
  fmt::print("  cd {} && meson setup build && ninja -C build && build/{} --epochs 2\n", folder.string(), name);
}

/// new NAME: creates a project that builds against the installed library.
static void add_new_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App& command =
      *app.add_subcommand("new", "a project of your own, for meson and CMake: a model, its data, a README");
  command.add_option("name", *folder, "name of the project; its folder is created here")->required();
  command.callback([folder] { write_project(std::filesystem::path(*folder).lexically_normal()); });
}

/// flight: reads the records of collectives that the ranks of a failed job left, and finds the rank that came too late.
static void add_flight_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App& flight = *app.add_subcommand(
      "flight", "shows which rank was late when a job failed, from the records that its ranks wrote");
  OptionGroup{flight}("folder", *folder,
                      "folder with flight-RANK.json: LOCKSTEP_FLIGHT_DIR, or attempt_N of a run's --log-dir")
      ->required();
  flight.callback([folder] { std::cout << dist::explain_flight(*folder); });
}

void add_launcher_commands(CLI::App& app, Shared& shared) {
  add_new_command(app);
  add_flight_command(app);
  add_verify_command(app, shared);
  add_run_command(app, shared);
}

}  // namespace apps
