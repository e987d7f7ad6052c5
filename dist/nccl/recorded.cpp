// Collectives and messages inside graphs (tensor/graph.h).
//
//   recording   caller's stream ──ready──┐                  ┌─end──▶ Work::wait(): the caller's stream continues
//               group's stream           └─▶ ncclAllReduce ─┘        all of this becomes part of the graph
//   replay      one call of the group, which launches the graph on the group's stream
//
// A recorded call is not running: it is not watched, and its events cannot be queried. Ranks do not compare recorded
// calls: if a rank failed in the middle of its recording, the others would wait for it. A replay is watched as a whole,
// by an event after it.
//
// NCCL keeps a communicator alive until the graphs with its collectives are destroyed, even after an abort. So these
// graphs must be dropped when a step fails.
#include "dist/nccl/engine.h"
#include "tensor/graph.h"

namespace lockstep::dist {
namespace {

/// Text of a recorded call, equal on all ranks: for messages it leaves out the peers.
std::string text_of(const Call& call, const std::vector<PointToPoint>& messages) {
  if (messages.empty()) return call.describe();
  std::string text;
  // True: a single send or receive. Sender and receiver record the same text.
  const bool is_one = call.collective != Collective::batch;
  for (const PointToPoint& p : messages)
    text += str(text.empty() ? "" : ", ",
                is_one      ? "message "
                : p.is_send ? "send "
                            : "receive ",
                p.tensor.dtype(), " x ", p.tensor.numel(), p.tag.empty() ? "" : ", tag " + p.tag);
  return text;
}

class RecordedWork final : public DeviceWork {
 public:
  RecordedWork(Call call, Device device) : call_(std::move(call)), ready_(device), end_(device) { ready_.record(); }
  /// Makes the current stream wait for the collective, unless wait() has done so. So memory that is freed after the end
  /// of this object is reused only after the collective.
  ~RecordedWork() override {
    try {
      if (!joined_) wait();
    } catch (...) {}  // NOLINT: the end of the recording reports it too
  }
  RecordedWork(const RecordedWork&) = delete;

  bool done() const override { refuse(); }
  void synchronize() override { refuse(); }
  void wait() override {
    if (!Graph::is_recording()) return;  // the recording was abandoned
    end_.wait();
    joined_ = true;
    if (call_.awaited) call_.input = call_.output = Tensor();  // releases the tensors of a call that is awaited
  }
  void begin() const { ready_.wait(); }
  void end() { end_.record(); }

 private:
  [[noreturn]] void refuse() const {
    fail(str("[", name_of(call_.collective),
             "] was recorded into a graph, so the host cannot wait for it; wait for the replay"));
  }

  Call call_;  // keeps its tensors alive
  Event ready_, end_;
  bool joined_ = false;
};

}  // namespace

std::shared_ptr<DeviceWork> NcclEngine::record(Call call) {
  const char* const op = name_of(call.collective).data();
  const std::vector<PointToPoint> messages = is_message(call.collective) ? messages_of(call) : decltype(messages)();
  check(call);
  std::shared_ptr<RecordedWork> work;
  call_queue.aside([&] {
    const auto check_link = [&](int peer) {
      const auto known = links_.find(peer);
      const auto of = [&] { return peer == everybody ? "" : str(" to or from rank ", world_ranks[size_t(peer)]); };
      LOCKSTEP_CHECK(known != links_.end(), "[", op, "] the first ", messages.empty() ? "collective" : "message",
                     " of group ", name, of(),
                     " cannot be captured, because it creates a communicator: call one before the capture");
      LOCKSTEP_CHECK(known->second.comm, "[", op, "] tensors of group ", name, of(),
                     " go through the host's memory, which cannot be captured; call it before or after the capture");
    };
    if (messages.empty()) check_link(everybody);
    for (const PointToPoint& p : messages) {
      LOCKSTEP_CHECK(!p.tensor.device().is_cpu(), "[", op,
                     "] a message from the CPU's memory cannot be captured; move it to the device first");
      check_link(p.peer);
    }
    recorded_.push_back(text_of(call, messages));
    call.algorithm = algorithm_of(call);
    what_ = recorded_.back();
    work = std::make_shared<RecordedWork>(call, *device_);
    const StreamScope scope(*stream_);
    work->begin();
    if (messages.empty()) enqueue(call, *links_.at(everybody).comm);
    else put_messages(call, messages);
    work->end();
  });
  return work;
}

std::vector<std::string> NcclEngine::take_recorded() {
  std::vector<std::string> all;
  call_queue.aside([&] { all.swap(recorded_); });
  return all;
}

/// Runs one replay of a graph on the group's stream, after the caller's earlier work. If the graph has collectives of
/// several groups, call.launch() calls replay() of the next group; the last group's launches the graph.
void NcclEngine::start_graph(Call& call, uint64_t sequence) {
  if (must_compare(++collectives_)) agree(call, sequence);
  call.launch();
  job->control->begin(call_queue.activity);  // the launch may have replayed another group
}

}  // namespace lockstep::dist
