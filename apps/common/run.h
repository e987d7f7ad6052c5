#pragma once
// A training run: its folder, its metrics, its checkpoint, and Ctrl-C.
#include <signal.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "apps/common/cli.h"
#include "data/json.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace apps {

using lockstep::data::Json;

/// Turns Ctrl-C and SIGTERM into a wish to stop; a second one ends the program at once. Made and destroyed on one thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  static bool requested();

 private:
  std::vector<char> stack_;  // that handlers run on
  stack_t before_{};
};

class Run {
 public:
  /// Makes the folder (when one was asked for) and writes config.json, or, resuming, checks that the saved config asks
  /// for the same model: an Error names the first option that differs. Only rank 0 writes, all ranks read.
  Run(const CommonOptions& options, const Team& team, const Json& config, const std::vector<std::string>& model_options);
  bool has_folder() const { return !folder_.empty(); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// Appends one line to metrics.jsonl.
  void metric(const Json& line);

  /// Everything needed to go on, in one file, replaced atomically. All ranks call it, and return when it is written. The
  /// bytes do not depend on the number of ranks.
  void save(lockstep::nn::Module& model, const lockstep::optim::Optimizer& optimizer, const std::map<std::string, double>& numbers) const;
  void save(const lockstep::nn::State& model, const lockstep::optim::OptimizerState& optimizer, const std::map<std::string, double>& numbers) const;
  /// Restores the checkpoint; gives back the numbers. Random numbers go on where they were.
  std::map<std::string, double> load(lockstep::nn::Module& model, lockstep::optim::Optimizer& optimizer) const;
  std::map<std::string, double> load(lockstep::nn::State& model, lockstep::optim::OptimizerState& optimizer) const;

 private:
  const Team& team_;
  std::string folder_;
  std::ofstream metrics_;
};

/// Only the weights of a checkpoint, for evaluation and sampling.
void load_model(lockstep::nn::Module& model, const std::string& checkpoint);

/// Prints the closing line: an object when --json was given, else "key value" pairs.
void print_result(const Json& result, bool json);

}  // namespace apps
