#pragma once
// Activation checkpointing (Chen et al., 2016): keep only the inputs of a piece of the model, and run it again when its
// gradient is needed. Random numbers are replayed, so dropout gives the same bits.
#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// fn(inputs), remembering nothing of what happens inside. Parameters and other variables that fn reads are found by themselves.
/// Error in backward when the second run gives another shape or dtype.
Variable checkpoint(const std::function<Variable(const std::vector<Variable>&)>& fn, const std::vector<Variable>& inputs);
Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& input);

}  // namespace lockstep
