#pragma once
// Experts over ranks, beside data parallelism. World 8, 4 ranks to share the experts (DeepSpeed's ep_size):
//
//   rank          0 1 2 3   4 5 6 7
//   expert group  0 1 2 3 | 4 5 6 7       all-to-all inside; rank 0 has experts 0 .. E/4
//   data groups   0 - - - - 0             gradients of an expert: ranks 0 and 4, 1 and 5, ...
//                   1 - - - - 1           of everything else: all ranks
//
// The loss is the mean over all ranks; an expert has seen the tokens of its whole expert group, so its gradients are
// summed over the data group and divided by all ranks too: zero::ZeroOptions::spread, in every stage. The groups are
// parallel::Mesh::ep() and edp().
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
