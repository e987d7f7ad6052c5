#pragma once
// Data parallelism in its simplest form, for reading: after backward, one all-reduce per parameter.
#include <functional>
#include <string>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Copies parameters and buffers of one rank of the group to all; not those whose names `ignore` knows.
void broadcast_module(nn::Module& module, dist::ProcessGroup& group, int root = 0,
                      const std::function<bool(const std::string& name)>& ignore = {});
/// grad = mean over ranks, parameter by parameter, in their order. A parameter without a gradient counts as zero.
void average_gradients(nn::Module& module, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
