#pragma once
// The commands of the extension forecast, and the models that their command lines name.
#include <vector>

#include "apps/commands.h"
#include "extensions/forecast/model_costs.h"

namespace apps {

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

/// plan: predicts memory, traffic and time of a training before it starts.
void add_plan_command(CLI::App& app, Shared& shared);
/// report: makes an HTML page about a run.
void add_report_command(CLI::App& app);
/// roofline: lists the kernels of a training step and predicts their time on a GPU.
void add_roofline_command(CLI::App& app);
/// simulate: predicts the time of a collective or of a training step.
void add_simulate_command(CLI::App& app, Shared& shared);
/// trace: merges the traces of all ranks.
void add_trace_command(CLI::App& app);

}  // namespace apps
