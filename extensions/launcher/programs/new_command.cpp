// `lockstep new NAME`: creates a project that builds against the installed library.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/classic_text.h"
#include "extensions/launcher/new_project.h"
#include "extensions/launcher/programs/launcher_commands.h"
#include "train/cli.h"

namespace apps {
namespace {

void write_project(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string(), placeholder = "my_project";
  const auto in_names = [](char c) { return lockstep::is_letter(c) || lockstep::is_digit(c) || c == '_' || c == '-'; };
  lockstep::train::as_usage([&] {
    LOCKSTEP_CHECK(!name.empty() && lockstep::is_letter(name[0]) && std::all_of(name.begin(), name.end(), in_names),
                   "[new] expected a name of letters, digits, - and _ that begins with a letter, got '", name, "'");
  });
  LOCKSTEP_CHECK(!std::filesystem::exists(folder), "[new] ", folder.string(),
                 " exists already: choose another name, or remove it");
  std::filesystem::create_directories(folder);
  for (const auto& [file, text] : project_files) {
    std::string own(text);
    for (size_t at = 0; (at = own.find(placeholder, at)) != std::string::npos; at += name.size())
      own.replace(at, placeholder.size(), name);
    lockstep::train::write_output((folder / file).string(), own);
  }
  fmt::print("{}: main.cpp, meson.build, CMakeLists.txt, README.md\n\n", folder.string());
  fmt::print("  cd {} && meson setup build && ninja -C build && build/{} --epochs 2\n", folder.string(), name);
}

}  // namespace

void add_new_command(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App& command =
      *app.add_subcommand("new", "a project of your own, for meson and CMake: a model, its data, a README");
  command.add_option("name", *folder, "name of the project; its folder is created here")->required();
  command.callback([folder] { write_project(std::filesystem::path(*folder).lexically_normal()); });
}

}  // namespace apps
