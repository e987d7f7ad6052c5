#pragma once
// What tensor parallelism sends, as operations on the tape (Shoeybi et al., Megatron-LM, 2019; for parts of a sequence
// Korthikanti et al., 2022). Each is the derivative of another:
//
//                      forward          backward
//   copy_to            nothing          all-reduce        Megatron's f: in front of a layer whose weight is cut
//   reduce_from        all-reduce       nothing           Megatron's g: behind one
//   scatter_to         own part         all-gather        of a value that all ranks have
//   gather_from        all-gather       own part          a value that all ranks use alike
//   all_gather         all-gather       reduce-scatter    parts of a sequence become whole in front of a cut weight
//   reduce_scatter     reduce-scatter   all-gather        and parts again behind one
//
// Called by all ranks of the group with tensors of one shape; the group must live as long as the graph. In a group of
// one all are the identity.
#include <functional>
#include <vector>

#include "autograd/variable.h"
#include "dist/process_group.h"

namespace lockstep::tensor_parallel {

constexpr int64_t along_sequence = -2;  ///< the dim of (..., tokens, width) that is cut into parts of a sequence

Variable copy_to(const Variable& x, dist::ProcessGroup& group);
Variable reduce_from(const Variable& x, dist::ProcessGroup& group);
// `dim` counts from the end when negative. scatter_to and reduce_scatter: Error unless the ranks divide it.
Variable scatter_to(const Variable& x, int64_t dim, dist::ProcessGroup& group);
Variable gather_from(const Variable& x, int64_t dim, dist::ProcessGroup& group);
Variable all_gather(const Variable& x, int64_t dim, dist::ProcessGroup& group);
Variable reduce_scatter(const Variable& x, int64_t dim, dist::ProcessGroup& group);

/// Collectives on tensors along any dim, begun and finished apart, so that something else may be computed between.
class Pending {
 public:
  /// In place. Without `background` it is there when this returns.
  static Pending all_reduce(const Tensor& x, dist::ProcessGroup& group, bool background = true);
  static Pending all_reduce(const Tensor& into, const Tensor& x, dist::ProcessGroup& group);
  /// Into a contiguous tensor, when one is given.
  static Pending all_gather(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into = {});
  static Pending reduce_scatter(const Tensor& x, int64_t dim, dist::ProcessGroup& group, const Tensor& into = {},
                                bool background = true);
  /// All of them, which fill `result`.
  static Pending all(std::vector<Pending> parts, const Tensor& result);
  Tensor wait();

 private:
  dist::Work work_;
  Tensor buffer_;
  std::function<Tensor(const Tensor&)> finish_;
};

}  // namespace lockstep::tensor_parallel
