// The group that moves tensors on devices by NCCL. Calls on the CPU and on the device form one sequence (CallQueue), so
// that all ranks run a mixture of both in the same order.
#include <algorithm>
#include <cstring>

#include "dist/native_group.h"
#include "dist/nccl/engine.h"
#include "tensor/graph.h"

namespace lockstep::dist {
namespace {

bool on_device(const Call& call) {
  const auto is = [](const Tensor& t) { return t.defined() && !t.device().is_cpu(); };
  return is(call.input) || is(call.output) ||
         std::any_of(call.batch.begin(), call.batch.end(), [&](const PointToPoint& p) { return is(p.tensor); });
}

class NcclGroup final : public NativeGroup {
 public:
  NcclGroup(std::shared_ptr<Job> job, Membership member) : NativeGroup(member) {
    engine_ = std::make_shared<NcclEngine>(std::move(job), std::move(member), traffic_);
  }
  const char* device_engine() const override { return nccl().moved_by(); }
  std::vector<std::string> take_recorded() override { return nccl().take_recorded(); }

  void replay(const std::vector<std::string>& calls, const std::function<void()>& launch) override {
    if (calls.empty()) return launch();
    Call call;
    call.collective = Collective::replay;
    call.count = int64_t(calls.size());
    call.dtype = u8;
    for (const std::string& one : calls) call.tag = std::to_string(hash_text(one, hash_text(call.tag)));
    const std::shared_ptr<DeviceWork> work = call.work = nccl().begin(call);
    call.launch = launch;
    engine_->call_queue.drain();  // then the launch runs on this thread, whose random generator it uses
    Work(engine_->call_queue.run(std::move(call), false), work).wait();
    traffic_->collectives += int64_t(calls.size()) - 1;
  }

 protected:
  bool moves_device_memory() const override { return true; }

  Work run(Call call, bool async) override {
    if (!on_device(call)) return NativeGroup::run(std::move(call), async);
    if (Graph::is_recording()) {
      Work recorded(Work(), nccl().record(std::move(call)));
      if (!async) recorded.wait();
      return recorded;
    }
    const bool by_host = std::strcmp(device_engine(), "host") == 0;
    if (by_host) (void)engine_->choose(call);
    // Copies through the host take time, and messages may wait for other ranks before they start (messages.cpp). So
    // both run on the group's thread if they are asynchronous.
    const bool takes_time = by_host || is_message(call.collective);
    const std::shared_ptr<DeviceWork> work = call.work = nccl().begin(call);
    Work result(engine_->call_queue.run(std::move(call), async && takes_time), work);
    if (!async) result.wait();
    return result;
  }

  std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>&) override {
    return std::make_shared<NcclGroup>(engine_->job, std::move(member));
  }

 private:
  NcclEngine& nccl() const { return static_cast<NcclEngine&>(*engine_); }
};

}  // namespace

const bool with_nccl = true;
std::string describe_nccl() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "version unknown";
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Job> job, Membership member) {
  return std::make_shared<NcclGroup>(std::move(job), std::move(member));
}

}  // namespace lockstep::dist
