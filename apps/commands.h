#pragma once
// The commands of `lockstep` and their shared parts. Each command adds itself to the command line and is described in
// its own file. To end with its own exit code, a command throws CLI::RuntimeError (see train::run_cli()).
//
// Extensions have commands of their own. An extension's meson.build sets `commands = files(...)`, which are compiled
// into the program. One of the files defines
//
//   void apps::add_NAME_commands(CLI::App& app, apps::Shared& shared);
//
// which adds the commands of extensions/NAME/. meson generates the function that calls it, from the extensions that
// are built (extension_commands.cpp.in).
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "train/cli.h"

namespace apps {

/// A user's program and its arguments. Commands keep a reference to the list, filled before the command line is parsed.
using Program = std::vector<std::string>;

/// A further name that `lockstep schedule` (extensions/schedules) takes, in place of an algorithm.
struct OtherSchedule {
  std::vector<std::string> options;  ///< options of `schedule` that only this name takes
  /// Prints the schedule, or draws it to the file `svg` if `svg` is not empty.
  std::function<void(const std::string& svg)> print;
};

/// A further kind of configuration file, added by an extension. `lockstep config` reads it if its flag was given.
struct OtherConfig {
  std::string (*reference)();  ///< returns the text of the page that documents all keys
  /// Prints the settings in `source` (a file, or its text) as JSON or as lines, and then the warnings about them.
  void (*print)(const std::string& source, bool json);
};

/// Values that all commands read or add to. They live until the chosen command has run.
struct Shared {
  Program program = {};
  std::vector<std::string> with_program = {};  ///< names of the commands that take a program, after --
  /// Commands that find the program in another way, by name. The function returns the index of the word at which the
  /// program begins (or the -- before it), and may change the words of its own command.
  std::map<std::string, size_t (*)(const CLI::App& command, std::vector<std::string>& words)> program_start = {};
  std::map<std::string, OtherSchedule> schedules = {};  ///< by name
  std::map<std::string, OtherConfig> configs = {};      ///< by flag of `config`, such as "--inference"
  /// For `lockstep checkpoint export` (extensions/checkpoint_tools): returns the name by which it writes a tensor, and
  /// true if it transposes the tensor. Null: tensors are written as they are in the checkpoint.
  std::function<std::pair<std::string, bool>(const std::string& name)> export_name = {};
};

/// Adds the commands of the extensions that are built.
void add_commands_of_extensions(CLI::App& app, Shared& shared);

/// config: explains a DeepSpeed configuration file. `shared` lists the other kinds of files that extensions add.
void add_config_command(CLI::App& app, const Shared& shared);
/// Prints a configuration: its values as JSON or as lines, then its warnings.
void print_config(const lockstep::data::Json& values, const std::string& lines,
                  const std::vector<std::string>& warnings, bool json);

}  // namespace apps
