#pragma once
// Our own engine: collectives are schedules (schedule.h) that an executor runs over channels (transport.h). By default
// `direct`, which moves as few bytes as a ring and adds in the order of summation_tree.h. Tensors on devices are moved by a
// DeviceEngine where there is one.
#include "dist/job.h"
#include "dist/process_group.h"

namespace lockstep::dist {

class NativeGroup final : public ProcessGroup {
 public:
  NativeGroup(std::shared_ptr<Job> job, Membership member);
  /// Does not wait for what is on its way: the job does, when it ends.
  ~NativeGroup() override;
  const char* engine() const override { return "native"; }
  const char* device_engine() const override;
  Tensor shared_empty(const Shape& shape, DType dtype = f32, Device device = cpu) override;
  Control& control() override;

 protected:
  bool moves_device_memory() const override;
  Work run(Call call, bool async) override;
  std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>& ranks) override;

 private:
  struct Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace lockstep::dist
