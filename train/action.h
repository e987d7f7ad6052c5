#pragma once
// An action is something that a program does instead of training, such as describing its model. The user asks for it by
// an environment variable. Extensions add actions: an extension's meson.build sets `actions = ['NAME']`, and one of its
// sources defines std::vector<CommandAction> lockstep::train::NAME(). meson generates the list from the extensions that
// are built (lockstep/list.cpp.in).
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/dataset.h"
#include "data/json.h"
#include "optim/optimizer.h"
#include "train/program_values.h"

namespace lockstep::train {

class TrainJob;

/// The model, data and settings with which a program is about to train.
struct Training {
  TrainJob& job;
  nn::Module& model;
  data::Json own = data::Json::Object();   ///< the program's default configuration
  ProgramValues values = {};               ///< the values that the program knows
  const optim::Optimizer* optimizer = {};  ///< the program's optimizer, if the configuration names none
  std::function<data::Example(int64_t samples)> batch = {};  ///< makes a batch; null: the program gave no data
  std::function<Variable(const Variable& output, const std::vector<Tensor>& targets)> loss = {};
  std::string unit = "samples";  ///< name of the units in a sample, such as "tokens"
  double per_sample = 1;         ///< units in a sample
};

/// An action in place of training.
struct CommandAction {
  const char* variable;                       ///< environment variable that asks for it
  const char* what;                           ///< for messages: "describe what it trains"
  void (*perform)(const Training& training);  ///< collective: every rank calls it
};
/// The actions of the extensions that are built.
const std::vector<CommandAction>& actions();
/// The action that the environment asks for, or nullptr.
const CommandAction* asked_action();

/// Thrown when the action was performed, to end the program. start() catches it. A program that does not use start()
/// ends as after any other Error.
struct Performed : Error {
  explicit Performed(const CommandAction& action) : Error(str("the program was asked to ", action.what, ", and did")) {}
};
/// The first `samples` samples of a dataset, repeated if it has fewer.
data::Example first_of(const data::Dataset<data::Example>& data, int64_t samples);
/// Performs the action and throws Performed.
[[noreturn]] void perform(const CommandAction& action, const Training& training);

}  // namespace lockstep::train
