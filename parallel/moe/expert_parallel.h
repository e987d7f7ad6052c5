#pragma once
// Expert parallelism, combined with data parallelism. 8 ranks, every 4 of which share experts (DeepSpeed's ep_size):
//
//   rank                  0 1 2 3   4 5 6 7
//   expert groups        [0 1 2 3] [4 5 6 7]     all-to-all inside; ranks 0 and 4 hold experts 0 .. E/4 - 1
//   expert data groups    a b c d   a b c d      sum the gradients of an expert: a = ranks 0 and 4, b = 1 and 5, ...
//   data group            all ranks              sums the gradients of all other parameters
//
// The loss is the mean over all ranks, and an expert sees the tokens of its whole expert group. An expert's gradients
// are therefore summed over the expert data group, but divided by the number of all ranks: zero::ZeroOptions::experts
// does that in every stage. The groups are parallel::Mesh::ep() and edp().
#include <memory>
#include <set>
#include <string>

#include "parallel/moe/layer.h"

namespace lockstep::moe {

/// Names of the parameters and buffers of experts that are not on every rank.
std::set<std::string> expert_names(nn::Module& model);
/// The number of ranks that share a model's experts; 1 if every rank has all experts. Error if the number differs
/// between the model's moe::MoeLayers.
int expert_ranks(nn::Module& model);

/// Replaces the MLP (nn::Module::feed_forward_place()) of every `every`-th block by a moe::MoeLayer of experts with the
/// same sizes, initialised like GPT-2's MLPs. options.width and options.inner are taken from the model. Errors: fewer
/// than `every` blocks; a block that has experts already.
void add_experts(nn::Module& model, MoeOptions options, int64_t every = 2,
                 const std::shared_ptr<dist::ProcessGroup>& group = nullptr);

}  // namespace lockstep::moe
