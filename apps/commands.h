#pragma once
// The commands of `lockstep` and their shared parts. Each command adds itself to the command line and is described in
// its own file. To end with its own exit code, a command throws CLI::RuntimeError (see train::run_cli()).
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "dist/schedule.h"
#include "engine/model_shape.h"

namespace apps {

/// Cuts the user's program and its arguments off the words of a command line, and returns the part cut off. For `run`,
/// the program starts at the first word that is not an option, or after --. Underscores in the names of run's own
/// options become dashes. For `verify`, `plan` and `simulate`, the program starts after --.
std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>& words);

/// A user's program and its arguments. Commands keep a reference to the list, which is filled later, by take_program().
using Program = std::vector<std::string>;

/// Error if one of these options was given. The Error's text is the option's name, followed by `why`.
void refuse_given(const CLI::App& command, const std::vector<std::string>& options, const std::string& why);

// Functions in program.cpp: they start a user's program, or find the model that a program or a name describes.

/// Runs a command and writes its output to a file in `folder`. If this process ends, the command gets SIGTERM. Error if
/// the command takes longer than `timeout` seconds or fails. In the second case the Error begins with `who` and names
/// the exit code (128 + the signal's number if a signal ended the command) and the last lines of the output.
void run_command(const std::string& who, const std::vector<std::string>& command,
                 const std::vector<std::pair<std::string, std::string>>& environment,
                 const std::filesystem::path& folder, double timeout);

/// The model that a command line names: by --model, or by a program that trains the model.
struct ModelAsked {
  std::string name;  ///< gpt:LAYERSxWIDTHxHEADS
  int64_t vocab = 50257, context = 1024;
  lockstep::engine::ExpertShape experts = {};
  const Program& program;  ///< the program and its arguments; empty: the model is given by name
};
/// The result of find_model(): the model's shape and, if a program trains the model, the program's settings.
struct ModelFound {
  lockstep::engine::ModelShape shape;
  lockstep::data::Json config = {};  ///< the program's configuration, or null
  std::string plan = {};             ///< the program's --plan
};
/// Error if one of `options` was given together with a program: they describe a model that --model names.
void refuse_beside_program(const CLI::App& command, const std::vector<std::string>& options, const ModelAsked& asked);
/// Finds the shape of a model. Starts the program, if one is given: it describes its model and times the model's layers
/// on `ranks` ranks at once. Error unless exactly one of name and program is given, or if the program describes no
/// model.
ModelFound find_model(const ModelAsked& asked, int ranks = 1);

// Options that describe a collective, for `schedule` and `simulate` (schedule.cpp).

/// The options of a command line that describe a collective.
struct CollectiveAsked {
  std::string algorithm, collective, hosts;
  int ranks = 4, root = 0;
  bool mean = false;
};
/// Adds an argument for the algorithm, and the options --ranks, --collective, --root and --hosts.
void add_collective_options(CLI::App& command, CollectiveAsked& asked, bool needs_algorithm);

/// The algorithm and the collective that the options of a command line name.
struct Collective {
  lockstep::dist::Algorithm algorithm;
  lockstep::dist::Request request;
};
/// Parses the options. Their algorithm is a name such as "ring", or "ring_all_reduce", which also names the collective.
/// Error for an invalid option.
Collective understand(const CollectiveAsked& asked);

/// checkpoint: inspects, verifies, merges and exports checkpoints.
void add_checkpoint_command(CLI::App& app);
/// config: explains the settings in a DeepSpeed configuration file.
void add_config_command(CLI::App& app);
/// flight: reads the records of collectives that the ranks of a failed job left, and finds the rank that came too late.
void add_flight_command(CLI::App& app);
/// new NAME: creates a project that uses the library.
void add_new_command(CLI::App& app);
/// plan: predicts memory, traffic and time of a training before it starts.
void add_plan_command(CLI::App& app, const Program& program);
/// report: makes an HTML page about a run.
void add_report_command(CLI::App& app);
/// roofline: lists the kernels of a training step and predicts their time on a GPU.
void add_roofline_command(CLI::App& app);
/// run: starts a program on many ranks.
void add_run_command(CLI::App& app, const Program& program);
/// schedule: prints, checks and draws the schedule of a collective, a pipeline, ring attention or serving.
void add_schedule_command(CLI::App& app);
/// simulate: predicts the time of a collective or of a training step.
void add_simulate_command(CLI::App& app, const Program& program);
/// sparse CONFIG: prints and draws the blocks that sparse attention attends to.
void add_sparse_command(CLI::App& app);
/// trace: merges the traces of all ranks.
void add_trace_command(CLI::App& app);
/// verify: trains by several plans and compares the parameters bit for bit.
void add_verify_command(CLI::App& app, const Program& program);

}  // namespace apps
