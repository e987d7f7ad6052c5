#pragma once
// What a program answers to `lockstep plan -- PROGRAM` and `lockstep simulate -- PROGRAM`: its model and configuration,
// before anything is trained. They ask by LOCKSTEP_DESCRIBE, a file for the answer.
#include "optim/optimizer.h"
#include "tensor/check.h"
#include "train/job.h"

namespace lockstep::train {

/// Ends the work of a rank that has answered: start() catches it; a program without it ends as by any other error.
struct Described : Error {
  Described() : Error("the program was asked what it trains, and has said it") {}
};

struct Description {
  nn::Module& model;
  data::Json own = data::Json::Object();                     ///< the program's keys of the configuration
  AutoValues values = {};                                    ///< and what "auto" stands for
  const optim::Optimizer* optimizer = {};                    ///< where the configuration names none
  std::function<data::Example(int64_t samples)> batch = {};  ///< to run the layers on; none: shapes alone must do
  std::function<Variable(const Variable& output, const Tensor& target)> loss = {};
  std::string unit = "samples";
  double per_sample = 1;  ///< of that unit
};
/// A micro-batch of them.
data::Example first_of(const data::Dataset<data::Example>& data, int64_t samples);
/// Collective. Every rank measures; the slowest counts. Writes the file, and throws Described.
[[noreturn]] void describe(Job& job, const Description& about);

}  // namespace lockstep::train
