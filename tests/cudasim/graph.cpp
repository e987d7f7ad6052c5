// CUDA graphs on the fake devices: a capture is what streams were given, with what each piece of it comes after; a
// launch puts all of it on one stream, in an order that this allows.
#include <algorithm>

#include "tests/cudasim/runtime.h"

namespace {

using namespace fake;

/// As it was captured; with what other streams were given as late as possible, or drawn: what does not wait for it
/// then comes before it.
std::vector<size_t> order_of(const std::vector<Node>& nodes, int device) {
  std::vector<size_t> order, left(nodes.size()), ready;
  std::vector<std::vector<size_t>> next(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    left[i] = nodes[i].after.size();
    for (const size_t before : nodes[i].after) next[before].push_back(i);
    if (left[i] == 0) ready.push_back(i);
  }
  const auto is_later = [&](size_t a, size_t b) {
    const bool beside = policy() == Policy::lazy && nodes[a].beside != nodes[b].beside;
    return beside ? nodes[a].beside : a > b;
  };
  while (!ready.empty()) {
    auto chosen = std::min_element(ready.begin(), ready.end(), [&](size_t a, size_t b) { return is_later(b, a); });
    if (policy() == Policy::random) chosen = ready.begin() + int64_t(draw_below(device, ready.size()));
    order.push_back(*chosen);
    ready.erase(chosen);
    for (const size_t after : next[order.back()])
      if (--left[after] == 0) ready.push_back(after);
  }
  return order;
}

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
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CUstream_st* s = find_stream(stream);
  if (!s) return cudaErrorInvalidResourceHandle;
  *status = !s->capture  ? cudaStreamCaptureStatusNone
            : s->spoiled ? cudaStreamCaptureStatusInvalidated
                         : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (!graph || !graph->alive) return cudaErrorInvalidValue;
  *exec = new CUgraphExec_st;
  (*exec)->nodes = graph->nodes;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->nodes.size();
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
  for (const size_t i : order_of(exec->nodes, find_stream(stream)->device))
    enqueue(stream, exec->nodes[i].op.run, exec->nodes[i].op.ready);
  return cudaSuccess;
}

}  // extern "C"
