#pragma once
// `lockstep run`: the options of torchrun and of DeepSpeed's launcher, for dist/launcher.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace apps {

class RunCommand {
 public:
  explicit RunCommand(CLI::App& app);
  ~RunCommand();
  /// Keeps the program and its arguments (from the first word that is no option, or after --), and gives back what comes
  /// before them, underscores in names of options made dashes. Other commands pass as they are.
  std::vector<std::string> take_program(int argc, char** argv);
  /// That of the job, once the command has run.
  int exit_code() const { return exit_code_; }

 private:
  struct Options;
  void run();

  CLI::App& sub_;
  std::unique_ptr<Options> options_;
  std::vector<std::string> program_;
  int exit_code_ = 0;
};

}  // namespace apps
