#pragma once
// `lockstep verify`: trains one program by several plans and compares the bits of every parameter after every step.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/mesh.h"

namespace apps {

/// One way to compute the same list of micro-batches: STRATEGY[@OPTION=VALUE,...]:RANKSxACCUMULATION.
struct Plan {
  std::string strategy;                                        ///< "ddp", "zero0" to "zero3", "zero1-cpu", "zero3-nvme", ..., "none", "dp2+pp2+tp2+zero1"
  std::vector<std::pair<std::string, std::string>> options;    ///< bucket=MIB, overlap=on|off, transport=auto|threads|shm|tcp
  int ranks = 1;
  int64_t accumulate = 1;
  std::optional<lockstep::parallel::Plan> parts;  ///< of "dp2+pp2": gpt train --plan
  /// Slices and shared sequences split sums, so their bits are not those of others: their losses are compared.
  bool is_close_only() const { return parts && parts->tp * parts->cp > 1; }
  int64_t micro_batches() const { return int64_t(parts ? parts->dp : ranks) * accumulate; }
  std::string text() const;
  /// The value of an option, or empty.
  std::string option(const std::string& name) const;
};

/// Plans separated by commas. Error that says what exists: an unknown strategy or option, sizes that are not numbers, or
/// plans that compute another number of micro-batches than the first.
std::vector<Plan> parse_plans(const std::string& text);
/// Every plan with every combination of "OPTION=VALUE,VALUE,..."; plans that an option says nothing to stay as they are.
std::vector<Plan> vary(const std::vector<Plan>& plans, const std::vector<std::string>& variations);

struct VerifyOptions {
  std::string plans = "none:1x4,ddp:1x4,ddp:2x2,ddp:4x1";
  std::vector<std::string> vary;
  int64_t steps = 0;              ///< 0: as the command says
  double timeout = 3600;          ///< seconds for one plan
  std::vector<std::string> command;
};
/// Exit code: 0 when all plans gave the same bits.
int verify(const VerifyOptions& options);

class VerifyCommand {
 public:
  explicit VerifyCommand(CLI::App& app);
  /// Cuts off the program and its arguments, which follow --, when the command is verify.
  void take_program(std::vector<std::string>& words);
  int exit_code() const { return exit_code_; }

 private:
  VerifyOptions options_;
  int exit_code_ = 0;
};

}  // namespace apps
