#pragma once
// The commands of `lockstep`, each of which adds itself to the command line and is explained in its file; and what
// several of them share. One that ends with an exit code of its own throws CLI::RuntimeError (train::run_cli()).
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "dist/schedule.h"
#include "engine/model_shape.h"

namespace apps {

/// A program and its arguments that a command runs, cut off from the words of the command line; empty: none. Of `run`:
/// from the first word that is no option, or after --; underscores in names of options before it become dashes. Of
/// `verify`, `plan` and `simulate`: after --.
std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>& words);

/// Each is told its program once that is read.
using Program = std::vector<std::string>;

/// Error when one of these options was given: its name, and why not.
void refuse_given(const CLI::App& command, const std::vector<std::string>& options, const std::string& why);

// Programs that commands run (program.cpp), and models: of a program, or a GPT by its sizes.

/// Runs a command with its output in a file of the folder. It ends when we do. Error when it takes longer than so many
/// seconds, or when it fails: `who` did, with what exit code (128 + signal) and what last lines.
void run_command(const std::string& who, const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 const std::filesystem::path& folder, double timeout);

/// The model that a command asks about.
struct ModelAsked {
  std::string name;  ///< gpt:LAYERSxWIDTHxHEADS
  int64_t vocab = 50257, context = 1024;
  lockstep::engine::ExpertShape experts = {};
  const Program& program;  ///< and its arguments; empty: by name
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

// What `schedule` and `simulate` are asked of a collective (schedule.cpp).

struct CollectiveAsked {
  std::string algorithm, collective, hosts;
  int ranks = 4, root = 0;
  bool mean = false;
};
void add_collective_options(CLI::App& command, CollectiveAsked& asked, bool needs_algorithm);

struct Collective {
  lockstep::dist::Algorithm algorithm;
  lockstep::dist::Request request;
};
/// The algorithm may be "ring", or "ring_all_reduce" for both at once. Error for what cannot be asked.
Collective understand(const CollectiveAsked& asked);

void add_checkpoint_command(CLI::App& app);
void add_config_command(CLI::App& app);
void add_flight_command(CLI::App& app);
/// new NAME: writes a project of the user's own.
void add_new_command(CLI::App& app);
void add_plan_command(CLI::App& app, const Program& program);
void add_report_command(CLI::App& app);
/// roofline: the kernels of a training step, and how long they should take on a card.
void add_roofline_command(CLI::App& app);
void add_run_command(CLI::App& app, const Program& program);
void add_schedule_command(CLI::App& app);
void add_simulate_command(CLI::App& app, const Program& program);
/// sparse CONFIG: prints and draws the blocks that sparse attention attends to.
void add_sparse_command(CLI::App& app);
void add_trace_command(CLI::App& app);
void add_verify_command(CLI::App& app, const Program& program);

}  // namespace apps
