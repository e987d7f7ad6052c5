#pragma once
// `lockstep plan --config FILE --model gpt:LxWxH --ranks N`: what a configuration will cost, before a rank starts.
#include <CLI/CLI.hpp>
#include <string>

#include "engine/plan.h"

namespace apps {

class PlanCommand {
 public:
  explicit PlanCommand(CLI::App& app);
  /// 2 for a config that is refused.
  int exit_code() const { return exit_code_; }

 private:
  void run();
  void run_parts();

  std::string config_, model_, plan_;
  int ranks_ = 0, exit_code_ = 0;
  int64_t vocab_ = 50257, context_ = 1024;
  lockstep::engine::ExpertShape experts_;
  double flops_ = 0, bandwidth_ = 0, memory_ = 0;
  bool json_ = false, units_ = false;
};

}  // namespace apps
