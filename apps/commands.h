#pragma once
// The commands of `lockstep`; each adds itself to the command line. One that ends with an exit code of its own throws
// CLI::RuntimeError (train::run_cli()).
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace apps {

/// A program and its arguments that a command runs, cut off from the words of the command line; empty: none. Of `run`:
/// from the first word that is no option, or after --; underscores in names of options before it become dashes. Of
/// `verify`, `plan` and `simulate`: after --.
std::vector<std::string> take_program(const CLI::App& app, std::vector<std::string>& words);

/// Each is told its program once that is read.
using Program = std::vector<std::string>;

/// checkpoint inspect|verify|merge|export DIR (docs/checkpoints.md); 1 when `verify` found something.
void add_checkpoint_command(CLI::App& app);
/// config FILE: what a configuration file means, or all that is wrong with it.
void add_config_command(CLI::App& app);
/// flight DIR: merges the flight records of a job's ranks and says who is late, and where.
void add_flight_command(CLI::App& app);
/// plan --ranks N -- PROGRAM, or --config FILE --model gpt:LxWxH: what a configuration will cost, before a rank starts.
void add_plan_command(CLI::App& app, const Program& program);
/// report DIR: one page about a run.
void add_report_command(CLI::App& app);
/// run: the options of torchrun and of DeepSpeed's launcher, for dist/launcher. Ends as the job does.
void add_run_command(CLI::App& app, const Program& program);
/// schedule: prints, checks and draws the schedule of a collective or of a pipeline.
void add_schedule_command(CLI::App& app);
/// simulate: how long a collective takes on a network, or a training step on ranks that are not there.
void add_simulate_command(CLI::App& app, const Program& program);
/// sparse CONFIG: prints and draws the blocks that sparse attention attends to.
void add_sparse_command(CLI::App& app);
/// trace merge DIR: one file of the timelines of a run's ranks.
void add_trace_command(CLI::App& app);
/// verify: trains one program by several plans and compares the bits of every parameter after every step; 1 when they
/// are not the same.
void add_verify_command(CLI::App& app, const Program& program);

}  // namespace apps
