#pragma once
// `lockstep config FILE`: what a configuration file means, or all that is wrong with it.
#include <CLI/CLI.hpp>
#include <string>

namespace apps {

class ConfigCommand {
 public:
  explicit ConfigCommand(CLI::App& app);
  /// 2 for a file that is refused.
  int exit_code() const { return exit_code_; }

 private:
  void run();

  std::string source_;
  int ranks_ = 1, exit_code_ = 0;
  bool json_ = false, reference_ = false;
};

}  // namespace apps
