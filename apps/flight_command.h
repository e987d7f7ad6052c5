#pragma once
// `lockstep flight DIR` merges the flight records of a job's ranks and says who is late, and where.
#include <CLI/CLI.hpp>

namespace apps {

void add_flight_command(CLI::App& app);

}  // namespace apps
