// Collectives in graphs (tensor/graph.h).
//
//   recording   caller's stream ──ready──┐                 ┌─end─▶ Work::wait(): goes on behind it
//               stream of the group      └─▶ ncclAllReduce ┘       all of it becomes a part of the graph
//   replay      one call of the group, in whose turn the graph is put on the group's stream
//
// What is recorded is not under way: nobody watches it, its events cannot be asked, and ranks do not compare it, as one
// that fails in the middle would leave the others waiting. A replay is watched as a whole, with an event behind it.
//
// NCCL keeps a communicator until the graphs that hold its collectives are gone, aborted or not: they have to be
// dropped when a step fails.
#include "dist/nccl/engine.h"
#include "tensor/graph.h"

namespace lockstep::dist {
namespace {

class RecordedWork final : public DeviceWork {
 public:
  RecordedWork(Call call, Device device) : call_(std::move(call)), ready_(device), end_(device) { ready_.record(); }
  /// Memory that others are given after this was forgotten is theirs behind the collective.
  ~RecordedWork() override {
    try {
      if (!joined_) wait();
    } catch (...) {}  // NOLINT: the end of the recording says so, too
  }
  RecordedWork(const RecordedWork&) = delete;

  bool done() const override { refuse(); }
  void synchronize() override { refuse(); }
  void wait() override {
    if (!Graph::is_recording()) return;  // it was given up
    end_.wait();
    joined_ = true;
  }
  void begin() const { ready_.wait(); }
  void end() { end_.record(); }

 private:
  [[noreturn]] void refuse() const {
    fail(
        str("[", name_of(call_.collective), "] is recorded, so that the host cannot wait for it; wait for the replay"));
  }

  const Call call_;  // keeps its tensors
  Event ready_, end_;
  bool joined_ = false;
};

}  // namespace

std::shared_ptr<DeviceWork> NcclEngine::record(Call call) {
  const char* const op = name_of(call.collective).data();
  LOCKSTEP_CHECK(!is_message(call.collective), "[", op, "] messages cannot be captured: send them before or after");
  check(call);
  std::shared_ptr<RecordedWork> work;
  turns.aside([&] {
    const auto all = links_.find(everybody);
    LOCKSTEP_CHECK(all != links_.end(), "[", op, "] the first collective of group ", name,
                   " cannot be captured, as it makes a communicator: call one before");
    LOCKSTEP_CHECK(all->second.comm, "[", op, "] tensors of group ", name,
                   " go through the host's memory, which cannot be captured");
    recorded_.push_back(call.describe());
    call.algorithm = algorithm_of(call);
    what_ = recorded_.back();
    work = std::make_shared<RecordedWork>(call, *device_);
    const StreamScope scope(*stream_);
    work->begin();
    enqueue(call, *all->second.comm);
    work->end();
  });
  return work;
}

std::vector<std::string> NcclEngine::take_recorded() {
  std::vector<std::string> all;
  turns.aside([&] { all.swap(recorded_); });
  return all;
}

/// On the stream of the group, behind what the caller's was given.
void NcclEngine::start_graph(Call& call, uint64_t sequence) {
  if (must_compare(++collectives_)) agree(call, sequence);
  call.launch();
}

}  // namespace lockstep::dist
