#pragma once
// `lockstep checkpoint inspect|verify|merge|export DIR`: see docs/checkpoints.md.
#include <CLI/CLI.hpp>
#include <string>

namespace apps {

class CheckpointCommand {
 public:
  explicit CheckpointCommand(CLI::App& app);
  /// 1 when `verify` found something.
  int exit_code() const { return exit_code_; }

 private:
  void inspect() const;
  void verify();

  std::string dir_, tag_, out_, dtype_ = "f32", prefix_ = "model.";
  bool json_ = false, hugging_face_ = false;
  int exit_code_ = 0;
};

}  // namespace apps
