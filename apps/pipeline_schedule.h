#pragma once
// `lockstep schedule 1f1b`: prints, checks, times and draws the schedule of a pipeline.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace apps {

struct PipelineAsked {
  int stages = 0, micro_batches = 0, chunks = 0;
  std::vector<double> costs{1, 1, 1, 0};
  bool paired = false;
};
void add_pipeline_options(CLI::App& command, PipelineAsked& asked);
bool names_pipeline(const std::string& schedule, const PipelineAsked& asked);
void print_pipeline(const std::string& schedule, const PipelineAsked& asked, const std::string& svg);

}  // namespace apps
