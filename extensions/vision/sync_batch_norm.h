#pragma once
// Batch norm over the batches of all ranks: with DDP, many small batches are normalised like one large batch.
//
//   forward    each rank: count, mean and sum of squared distances of every channel ─▶ all-gathered, merged in order
//              of ranks (Chan, Golub, LeVeque, 1979), so that all ranks have bit-identical statistics
//   backward   each rank: Σ dy and Σ dy x̂ of every channel ─▶ all-reduced
//
// A layer of C channels moves 2 C + 1 numbers (f64) forward and 2 C backward. Batches may differ in size and may be
// empty on some ranks, but all ranks must run the layer.
#include <memory>

#include "dist/process_group.h"
#include "nn/norm.h"

namespace lockstep::parallel {

/// Normalises x (N, C, ...) like batch_norm() in training mode, with the statistics of all ranks of `group`. Updates
/// the running statistics unless they are undefined. Error if there is only one value per channel over all ranks.
/// Collective, and so is the backward.
Variable sync_batch_norm(const Variable& x, const Variable& weight, const Variable& bias, const Tensor& running_mean,
                         const Tensor& running_var, double momentum, double eps,
                         std::shared_ptr<dist::ProcessGroup> group);

/// Synchronises every BatchNorm in `module` over the ranks of `group` (default: the world). Collective: it creates a
/// new group of these ranks, because the layers' collectives run in between DDP's. Returns the number of layers.
/// Parameters, buffers and names do not change. To undo it, set across_ranks = nullptr in each layer.
int convert_sync_batch_norm(nn::Module& module, dist::ProcessGroup* group = nullptr);

}  // namespace lockstep::parallel
