#pragma once
// `lockstep schedule` prints, checks and draws a collective's schedule; `lockstep simulate` says how long it would take.
#include <CLI/CLI.hpp>

namespace apps {

void add_schedule_command(CLI::App& app);
void add_simulate_command(CLI::App& app);

}  // namespace apps
