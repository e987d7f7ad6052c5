#pragma once
// Our own group: collectives are schedules (schedule.h) that an executor runs over channels (transport.h). By default
// `direct`, which moves as few bytes as a ring and adds in the order of summation_tree.h. For tensors on devices there
// is a group of its own that has this one's calls too: make_nccl_group().
#include "dist/job.h"
#include "dist/process_group.h"

namespace lockstep::dist {

struct NativeEngine;

class NativeGroup : public ProcessGroup {
 public:
  NativeGroup(std::shared_ptr<Job> job, Membership member);
  /// Does not wait for what is on its way: the job does, when it ends.
  ~NativeGroup() override;
  const char* engine() const override { return "native"; }
  Tensor shared_empty(const Shape& shape, DType dtype = f32, Device device = cpu) override;
  Control& control() override;

 protected:
  explicit NativeGroup(Membership member) : ProcessGroup(std::move(member)) {}
  Work run(Call call, bool async) override;
  std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>& ranks) override;

  std::shared_ptr<NativeEngine> engine_;
};

/// Whether this build has NCCL.
extern const bool with_nccl;
/// "2.28.9, with windows" (nccl/window.h), or that there is none; for `lockstep env`.
std::string describe_nccl();
/// A group whose tensors on devices NCCL moves; those on the CPU go as in a NativeGroup, in one order with them.
/// Nothing of CUDA is touched before the first call with such a tensor. Null in a build without NCCL.
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Job> job, Membership member);

}  // namespace lockstep::dist
