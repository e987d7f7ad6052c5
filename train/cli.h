#pragma once
// What every program does around its work: options, help, errors that a person can act on.
#include <CLI/CLI.hpp>
#include <string>

#include "data/json.h"
#include "train/team.h"

namespace lockstep::train {

/// Parses and runs the chosen subcommand's callback. Exit codes: 0 done, 1 an error (one line on stderr) or output that
/// could not be written, 2 wrong usage (with the nearest known option), 128 + signal for a training that a signal
/// stopped; a callback ends with another by CLI::RuntimeError(code).
int run_cli(CLI::App& app, int argc, char** argv);

/// What the command line asks for cannot be: exit code 2.
struct UsageError : Error {
  using Error::Error;
};
/// Runs what only looks at options; its errors are of usage.
template <class Fn> auto as_usage(const Fn& fn) {
  try {
    return fn();
  } catch (const Error& error) { throw UsageError(error.what()); }
}

/// The whole of a file that the user asked for; what goes wrong is no UsageError.
void write_output(const std::string& path, const std::string& text);

/// This build and the options that a subcommand was given, for ParallelOptions::identity.
std::string identity_of(const CLI::App& subcommand);
/// Prints the closing line: an object when --json was given, else "key value" pairs.
void print_result(const data::Json& result, bool json);
/// Before the first step: makes the folder and tries to write there, so that what is made at the end has a place.
/// `option` is for the Error.
void prepare_output(const std::string& option, const std::string& folder);

}  // namespace lockstep::train
