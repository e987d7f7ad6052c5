#pragma once
// Our own engine: collectives are schedules (schedule.h) that an executor runs over channels (transport.h). By default
// `direct`, which moves as few bytes as a ring and adds in the order of summation_tree.h.
#include "dist/job.h"
#include "dist/process_group.h"

namespace lockstep::dist {

class NativeGroup final : public ProcessGroup {
 public:
  /// `id`: unique in the job, the same on all ranks of the group.
  NativeGroup(std::shared_ptr<Job> job, std::string id, std::string name, int rank, std::vector<int> world_ranks);
  /// Does not wait for what is on its way: the job does, when it ends.
  ~NativeGroup() override;
  const char* engine() const override { return "native"; }
  Tensor shared_empty(const Shape& shape, DType dtype = f32) override;
  Control& control() override;

 protected:
  Work run(Call call, bool async) override;
  std::shared_ptr<ProcessGroup> make_group(const std::vector<int>& ranks, const std::string& name) override;

 private:
  struct Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace lockstep::dist
