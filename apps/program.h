#pragma once
// Programs that other commands run: `lockstep verify -- PROGRAM`, `lockstep plan -- PROGRAM`; and models that plan and
// simulate ask about, a program's own or a GPT by its sizes.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "engine/model_shape.h"

namespace apps {

/// Runs a command with its output in a file; gives back its exit code (128 + signal). It ends when we do, and after so
/// many seconds, which is an Error.
int run_command(const std::vector<std::string>& command,
                const std::vector<std::pair<std::string, std::string>>& environment,
                const std::filesystem::path& output, double timeout);
std::string last_lines(const std::filesystem::path& file, size_t count);

/// The model that a command asks about.
struct ModelAsked {
  std::string name;  ///< gpt:LAYERSxWIDTHxHEADS
  int64_t vocab = 50257, context = 1024;
  lockstep::engine::ExpertShape experts = {};
  const std::vector<std::string>& program;  ///< and its arguments; empty: by name
};
struct ModelFound {
  lockstep::engine::ModelShape shape;
  lockstep::data::Json config = {};  ///< of the program; null: there is none
  std::string plan = {};             ///< that it was given
};
/// Error when one of these options, which are of a model by name, was given beside a program.
void refuse_beside_program(const CLI::App& command, const std::vector<std::string>& options, const ModelAsked& asked);
/// `ranks`: how many of the program measure its layers at once. Error when both or neither are given, or when the
/// program does not say what it trains.
ModelFound find_model(const ModelAsked& asked, int ranks = 1);

}  // namespace apps
