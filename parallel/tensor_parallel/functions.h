#pragma once
// The collectives of tensor parallelism as differentiable operations (Shoeybi et al., Megatron-LM, 2019; for parts of a
// sequence Korthikanti et al., 2022). Each is the derivative of another:
//
//                      forward          backward
//   copy_to            identity         all-reduce        Megatron's f: before a layer with a sharded weight
//   reduce_from        all-reduce       identity          Megatron's g: after such a layer
//   scatter_to         own part         all-gather        of a value that is the same on all ranks
//   gather_from        all-gather       own part          if all ranks then compute the same with the whole
//   all_gather         all-gather       reduce-scatter    joins a sequence's parts before a layer with a sharded weight
//   reduce_scatter     reduce-scatter   all-gather        makes parts of a sequence from sums after such a layer
//
// Collective: all ranks of the group call them with tensors of one shape. The group must outlive the graph. In a group
// of one rank they are the identity.
#include <functional>
#include <vector>

#include "autograd/variable.h"
#include "dist/process_group.h"

namespace lockstep::tensor_parallel {

constexpr int64_t along_sequence = -2;  ///< the dim of tokens in (..., tokens, width), cut in sequence parallelism

Variable copy_to(const Variable& x, dist::ProcessGroup& group);  ///< f: identity forward, all-reduce of the gradient
Variable reduce_from(const Variable& x, dist::ProcessGroup& group);  ///< g: all-reduce forward, identity backward
// scatter_to() returns this rank's part of x along `dim`. In this and the next three functions a negative `dim` counts
// from the end. scatter_to() and reduce_scatter() raise an Error unless the number of ranks divides the size of `dim`.
Variable scatter_to(const Variable& x, int64_t dim, dist::ProcessGroup& group);
/// Joins the ranks' parts along `dim`; backward takes this rank's part of the gradient.
Variable gather_from(const Variable& x, int64_t dim, dist::ProcessGroup& group);
/// Joins the ranks' parts along `dim`; backward reduce-scatters the gradient.
Variable all_gather(const Variable& x, int64_t dim, dist::ProcessGroup& group);
/// Sums x over the ranks, and returns this rank's part of the sum along `dim`.
Variable reduce_scatter(const Variable& x, int64_t dim, dist::ProcessGroup& group);

/// A collective operation that has been started. It may run in the background until wait() is called.
class Pending {
 public:
  /// Sums x over the ranks, in place or into `into`. Without `background` the sum is complete when this returns.
  static Pending all_reduce(const Tensor& x, dist::ProcessGroup& group, bool background = true);
  static Pending all_reduce(const Tensor& into, const Tensor& x, dist::ProcessGroup& group);
  /// Concatenates the ranks' x along `dim`, into the contiguous tensor `into` if it is given.
  static Pending all_gather(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into = {});
  /// Sums x over the ranks, and keeps this rank's part along `dim`. Error unless the number of ranks divides the size
  /// of `dim`.
  static Pending reduce_scatter(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into = {},
                                bool background = true);
  /// Returns a Pending whose wait() waits for all `parts` (each fills a slice of `result`) and returns `result`.
  static Pending all(std::vector<Pending> parts, const Tensor& result);
  Tensor wait();  ///< waits, and returns the result; call it once

 private:
  dist::Work work_;
  Tensor buffer_;
  std::function<Tensor(const Tensor&)> finish_;
};

}  // namespace lockstep::tensor_parallel
