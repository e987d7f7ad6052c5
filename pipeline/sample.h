#pragma once
// The data of a pipeline and its loss.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nn/layer_list.h"

namespace lockstep::pipeline {

/// Tensors that pass from one layer to the next.
using nn::Values;

/// A micro-batch: the inputs of the first layer, and the targets that the loss takes besides the last layer's outputs.
struct Sample {
  std::vector<Tensor> inputs, targets;
};
/// Returns a micro-batch by its index in the step, 0 .. micro_batches x dp - 1. The ranks that hold the first or the
/// last layer call it with ascending indices. Random operations in it give the same values on all of these ranks.
/// nullopt means that the data has ended, which raises an Error on all ranks.
using Data = std::function<std::optional<Sample>(int64_t micro_batch)>;
/// Computes the mean loss of a micro-batch, one floating-point number.
using Loss = std::function<Variable(const Values& outputs, const std::vector<Tensor>& targets)>;

}  // namespace lockstep::pipeline
