// CUDA graphs on the fake devices: a capture is the list of what streams were given, a launch puts it on a stream
// again.
#include "tests/cudasim/runtime.h"

namespace {
using namespace fake;
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
  const bool complete = end_capture(captured);
  if (s->spoiled || !complete) {
    delete captured;
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
  (*exec)->ops = graph->ops;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->ops.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph || !graph->alive) return cudaErrorInvalidValue;
  graph->alive = false;
  graph->ops.clear();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!exec || !exec->alive) return cudaErrorInvalidValue;
  exec->alive = false;
  exec->ops.clear();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t stuck = step(); stuck != cudaSuccess) return stuck;
  if (!exec || !exec->alive || !find_stream(stream)) return cudaErrorInvalidValue;
  if (find_stream(stream)->capture) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t code = launch_failure.next(); code != cudaSuccess) return code;
  note_launch("graph");
  for (const Op& op : exec->ops) enqueue(stream, op.run, op.ready);
  return cudaSuccess;
}

}  // extern "C"
