#pragma once
// Data parallelism in its simplest form, meant for reading: after backward, one all-reduce per parameter.
#include <functional>
#include <string>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::parallel {

/// Broadcasts the module's parameters and buffers from rank `root` of the group to all its ranks. Names for which
/// `ignore` returns true are left out. If the module was built empty, its parameters get values first.
void broadcast_module(nn::Module& module, dist::ProcessGroup& group, int root = 0,
                      const std::function<bool(const std::string& name)>& ignore = {});
/// Replaces every .grad by its mean over the ranks, one all-reduce per parameter, in the order of named_parameters(). A
/// parameter that requires grad but has no gradient counts as zero. Collective.
void average_gradients(nn::Module& module, dist::ProcessGroup& group);

}  // namespace lockstep::parallel
