// Adds the commands of the extension forecast, and finds the model that a program or a name describes.
#include "extensions/forecast/programs/forecast_commands.h"

#include "data/files.h"
#include "extensions/launcher/process.h"
#include "extensions/launcher/scratch.h"
#include "extensions/schedules/programs/collective_options.h"
#include "train/interrupt.h"
#include "train/model_format.h"

namespace apps {

using namespace lockstep;

void refuse_beside_program(const CLI::App& command, const std::vector<std::string>& options, const ModelAsked& asked) {
  if (!asked.program.empty())
    refuse_given(command, options, " is of a model by its name (--model); leave it out for " + asked.program[0]);
}

ModelFound find_model(const ModelAsked& asked, int ranks) {
  LOCKSTEP_CHECK(asked.name.empty() != asked.program.empty(),
                 "expected a model: --model gpt:LAYERSxWIDTHxHEADS, or a program that trains one, as -- PROGRAM "
                 "ARGUMENTS; got ",
                 asked.name.empty() ? "neither" : "both");
  if (asked.program.empty())
    return {.shape = engine::shape_of<nn::GPT>(
                train::model_options(asked.name, {.vocab = asked.vocab, .context = asked.context}), asked.experts)};
  const dist::ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path(), file = folder / "model.json";
  std::vector<std::string> command = asked.program;
  if (ranks > 1) command.insert(command.end(), {"--ranks", std::to_string(ranks)});
  const std::string& name = asked.program[0];
  try {
    dist::run_program(name + " was asked to describe what it trains, and", command,
                      {{"LOCKSTEP_DESCRIBE", file.string()}}, folder, 600, train::Interrupt::requested);
  } catch (const Error&) {  // a program without train::start() treats train::Described as an error
    if (!std::filesystem::exists(file)) throw;
  }
  LOCKSTEP_CHECK(std::filesystem::exists(file), name,
                 " succeeded but did not describe what it trains; programs with a train::Trainer or train::prepare do, "
                 "so train with one of these");
  const data::Json answer = data::read_json(file.string());
  return {.shape = engine::model_shape_from(answer.at("model", name), name),
          .config = answer.at("config", name),
          .plan = answer.at("plan", name).as_string(name)};
}

void add_forecast_commands(CLI::App& app, Shared& shared) {
  add_simulate_command(app, shared);
  add_report_command(app);
  add_trace_command(app);
  add_plan_command(app, shared);
  add_roofline_command(app);
}

}  // namespace apps
