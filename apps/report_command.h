#pragma once
// `lockstep report DIR`: one page about a run. `lockstep trace merge DIR`: one file of the timelines of its ranks.
#include <CLI/CLI.hpp>

namespace apps {

void add_report_command(CLI::App& app);
void add_trace_command(CLI::App& app);

}  // namespace apps
