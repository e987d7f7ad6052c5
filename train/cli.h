#pragma once
// Common parts of all programs: options, help, exit codes, and errors that a user can act on.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/json.h"
#include "train/team.h"

namespace lockstep::train {

/// Parses the arguments and runs the subcommand's callback. Exit codes: 0 success, 1 an error (one line on stderr) or
/// output that could not be written, 2 wrong usage (with the nearest known option), 128 + signal if a signal stopped
/// the training. A callback chooses another code by throwing CLI::RuntimeError(code).
int run_cli(CLI::App& app, int argc, char** argv);
/// run_cli() with the words of a command line; the first is the program's name.
int run_cli(CLI::App& app, std::vector<std::string> words);

using lockstep::as_usage, lockstep::UsageError;

/// Writes a file that the user asked for. Error (not a UsageError) if that fails.
void write_output(const std::string& path, const std::string& text);

/// Text that identifies this build and a subcommand's options. Ranks with different texts refuse to train together.
std::string identity_of(const CLI::App& subcommand);
/// Prints a program's results as its last line of output: JSON with --json, else "key value" pairs.
void print_result(const data::Json& result, bool json);
/// Creates a folder and tests that it is writable. Call this before the first step, because results are written only at
/// the end. The Error names `option`.
void prepare_output(const std::string& option, const std::string& folder);

}  // namespace lockstep::train
