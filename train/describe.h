#pragma once
// Describes a program's model and configuration, without training, for `lockstep plan -- PROGRAM` and `lockstep
// simulate -- PROGRAM`. These commands set LOCKSTEP_DESCRIBE to the name of the file to write.
#include "optim/optimizer.h"
#include "tensor/check.h"
#include "train/job.h"

namespace lockstep::train {

/// describe() throws this to end the program when the description is written. start() catches it; a program that does
/// not use start() ends as after any other Error.
struct Described : Error {
  Described() : Error("the program was asked to describe what it trains, and did") {}
};

/// The model and settings that describe() writes down.
struct Description {
  nn::Module& model;
  data::Json own = data::Json::Object();   ///< the program's default configuration
  AutoValues values = {};                  ///< values for "auto"
  const optim::Optimizer* optimizer = {};  ///< the program's optimizer, if the configuration names none
  /// A batch to time the layers with; without it, only shapes are known.
  std::function<data::Example(int64_t samples)> batch = {};
  std::function<Variable(const Variable& output, const Tensor& target)> loss = {};
  std::string unit = "samples";  ///< name of the units in a sample, such as "tokens"
  double per_sample = 1;         ///< units in a sample
};
/// The first `samples` samples of a dataset, repeated if it has fewer.
data::Example first_of(const data::Dataset<data::Example>& data, int64_t samples);
/// Times the layers on every rank, writes the times of the slowest rank to the file, and throws Described. Collective.
[[noreturn]] void describe(Job& job, const Description& about);

}  // namespace lockstep::train
