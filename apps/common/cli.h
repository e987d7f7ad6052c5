#pragma once
// What every program does around its work: options, help, errors that a person can act on.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "apps/common/parallel.h"

namespace apps {

/// Parses and runs the chosen subcommand's callback. Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage
/// (with the nearest known option).
int run_cli(CLI::App& app, int argc, char** argv);

/// Checks for options, before any rank starts. (CLI11's own let numbers beyond 64 bits and NaN through.)
CLI::Validator whole(int64_t least, int64_t most);
CLI::Validator number(double least, double most);
inline constexpr int64_t most_steps = 1'000'000'000'000, most_size = 1 << 20;

/// Options that all training programs share.
struct CommonOptions {
  std::string out;         ///< folder for metrics.jsonl, config.json and checkpoints
  bool resume = false;
  bool json = false;
  int threads = 0;
  uint64_t seed = 1;
  std::string device = "cpu";  ///< cpu, cuda, cuda:N
  ParallelOptions parallel;
};
/// A training run that the launcher starts again goes on from its checkpoint, as with --resume.
void add_common_options(CLI::App& app, CommonOptions& options, bool training);
/// Where this rank computes. "cuda" leaves the number to us: ranks of one machine take its devices in turn. Error that says why
/// when there is none.
lockstep::Device device_of(const CommonOptions& options, const Team& team);
/// Applies threads and seed, and checks what depends on several options.
void apply_common_options(const CommonOptions& options);

}  // namespace apps
