#pragma once
// Batch norm over the batches of all ranks: with DDP, small batches per rank normalise like one large batch.
//
//   forward    every rank: count, mean, sum of squared distances of each channel  ─▶ gathered, merged by rank
//              (Chan, Golub, LeVeque, 1979), so all ranks hold the same statistics to the bit
//   backward   sum of gradients, sum of gradients times x̂  ─▶ summed over ranks
//
// 2 C + 1 numbers a layer each way. Ranks may have batches of any size, also empty ones, but all must run the layer.
#include <memory>

#include "dist/process_group.h"
#include "nn/norm.h"

namespace lockstep::parallel {

/// batch_norm() in training, with the statistics of all ranks of `group`. x (N, C, ...).
Variable sync_batch_norm(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                         const Tensor& running_var, double momentum, double eps,
                         std::shared_ptr<dist::ProcessGroup> group);

/// Synchronises every BatchNorm below `module`, or itself, over a new group of the ranks of `group` (default: the
/// world), which serves nothing else, as its collectives run between DDP's: so all its ranks must call it. Gives back
/// how many there were; parameters, buffers and names stay. Undone by over_batch = nullptr in each.
int convert_sync_batch_norm(nn::Module& module, dist::ProcessGroup* group = nullptr);

}  // namespace lockstep::parallel
