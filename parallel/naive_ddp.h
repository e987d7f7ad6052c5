#pragma once
// Data parallelism in its simplest form, for reading: after backward, one all-reduce per parameter.
#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Copies parameters and buffers of one rank of the group to all.
void broadcast_module(nn::Module& module, dist::ProcessGroup& group, int root = 0);
/// grad = mean over ranks, parameter by parameter, in their order. A parameter without a gradient counts as zero.
void average_gradients(nn::Module& module, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
