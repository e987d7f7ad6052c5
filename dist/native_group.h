#pragma once
// The native process group: collectives are schedules (schedule.h), executed over channels (transport.h). The default
// algorithm, except for very small tensors, is `direct`, which moves as few bytes as a ring and adds in the order of
// summation_tree.h. make_nccl_group() returns a derived group, which uses NCCL for tensors on devices.
#include "dist/job.h"
#include "dist/process_group.h"

namespace lockstep::dist {

struct NativeEngine;

/// A group over threads, shared memory or TCP.
class NativeGroup : public ProcessGroup {
 public:
  /// `member`: this rank's place in the group. Opens the transport.
  NativeGroup(std::shared_ptr<Job> job, Membership member);
  /// Does not wait for running calls: the job keeps the NativeEngine that runs them until the job ends.
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

/// True if this build has NCCL.
extern const bool with_nccl;
/// NCCL's version for `lockstep env`, such as "2.28.9", or a note that there is none.
std::string describe_nccl();
/// A group that moves tensors on devices by NCCL, and tensors on the CPU like a NativeGroup. It starts all calls in the
/// order in which they are made. It does not use CUDA before the first call with a tensor on a device. Null in a build
/// without NCCL.
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Job> job, Membership member);

}  // namespace lockstep::dist
