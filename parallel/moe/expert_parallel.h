#pragma once
// Experts over ranks, beside data parallelism: neighbouring ranks share the experts (DeepSpeed's ep_size; all-to-all
// inside), those at the same place of each such group have the same ones. Gradients of an expert are summed over the
// latter and divided by all ranks: zero::ZeroOptions::spread, in every stage. The groups are parallel::Mesh::ep() and
// edp(). docs/moe.md draws them.
#include <memory>
#include <set>
#include <string>

#include "parallel/moe/layer.h"

namespace lockstep::moe {

/// Names of the parameters and buffers of experts that only some ranks have.
std::set<std::string> expert_names(nn::Module& model);
/// How many ranks share the experts of a model; 1: each has all. Error when its layers differ.
int expert_ranks(nn::Module& model);

/// Experts in place of the MLPs (nn::Module::feed_forward_place()) of every `every`-th block (the last of each so
/// many), as wide as those, initialised like GPT-2's. `options`: width and inner are the model's.
void add_experts(nn::Module& model, Options options, int64_t every = 2,
                 const std::shared_ptr<dist::ProcessGroup>& group = nullptr);

}  // namespace lockstep::moe
