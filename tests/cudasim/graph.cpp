// CUDA graphs on the fake devices. A capture records the work given to its streams and which work each piece follows. A
// launch puts that many steps on one stream; each step runs a node that may run next. A node that has to wait, for
// example for another rank, delays only its successors.
#include <algorithm>
#include <memory>
#include <set>

#include "tests/cudasim/runtime.h"

namespace {

using namespace fake;

/// One launch of a graph.
class Launch {
 public:
  Launch(const std::vector<Node>& nodes, int device) : nodes_(nodes), left_(nodes.size()), next_(nodes.size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const uint64_t priority =
          policy() == Policy::random ? draw_below(device, nodes_.size()) : policy() == Policy::lazy && nodes_[i].beside;
      rank_.emplace_back(priority, i);
      left_[i] = nodes_[i].after.size();
      for (const size_t before : nodes_[i].after) next_[before].push_back(i);
      if (left_[i] == 0) ready_.insert(rank_[i]);
    }
  }
  /// Chooses a node that may run now; false if there is none.
  bool find() {
    chosen_ = std::find_if(ready_.begin(), ready_.end(), [&](const Rank& rank) {
      const auto& may_go = nodes_[rank.second].op.ready;
      return !may_go || may_go();
    });
    return chosen_ != ready_.end();
  }
  /// Runs the chosen node.
  void run() {
    const size_t node = ready_.extract(chosen_).value().second;
    Op& op = nodes_[node].op;
    op.run();
    op.run = nullptr;  // destroyed here, by the thread that ThreadSanitizer saw use its values
    op.ready = nullptr;
    for (const size_t after : next_[node])
      if (--left_[after] == 0) ready_.insert(rank_[after]);
  }

 private:
  /// Determines the order of nodes that are ready together: the order of capture; with the lazy policy, nodes
  /// of joined streams come as late as possible; with the random policy, the order is drawn.
  using Rank = std::pair<uint64_t, size_t>;
  std::vector<Node> nodes_;
  std::vector<Rank> rank_;
  std::vector<size_t> left_;  // predecessors that have not run
  std::vector<std::vector<size_t>> next_;
  std::set<Rank> ready_;
  std::set<Rank>::iterator chosen_;
};

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  CUstream_st* s = find_stream(stream);
  if (!s || !stream) return cudaErrorStreamCaptureUnsupported;  // not the legacy stream
  if (s->capture || capturing) return cudaErrorIllegalState;
  s->capture = new CUgraph_st;
  s->spoiled = false;
  capturing = s;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  CUstream_st* s = find_stream(stream);
  if (!s || !s->capture || s->joined) return cudaErrorIllegalState;
  if (s != capturing) return cudaErrorStreamCaptureWrongThread;
  capturing = nullptr;
  CUgraph_st* captured = s->capture;
  const bool complete = end_capture(captured, s);
  if (s->spoiled || !complete) {
    captured->nodes.clear();
    return s->spoiled ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
  }
  *graph = captured;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (!graph || !graph->alive) return cudaErrorInvalidValue;
  *exec = new CUgraphExec_st;
  (*exec)->nodes = graph->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph || !graph->alive) return cudaErrorInvalidValue;
  graph->alive = false;
  graph->nodes.clear();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!exec || !exec->alive) return cudaErrorInvalidValue;
  exec->alive = false;
  exec->nodes.clear();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t stuck = step(); stuck != cudaSuccess) return stuck;
  if (!exec || !exec->alive || !find_stream(stream)) return cudaErrorInvalidValue;
  if (find_stream(stream)->capture) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t code = launch_failure.next(); code != cudaSuccess) return code;
  note_launch("graph");
  const auto launch = std::make_shared<Launch>(exec->nodes, find_stream(stream)->device);
  for (size_t i = 0; i < exec->nodes.size(); ++i)
    enqueue(
        stream, [=] { launch->run(); }, [=] { return launch->find(); });
  return cudaSuccess;
}

}  // extern "C"
