// Planted bugs in ordering and lifetimes: stream-ordered memory, events, graphs, host memory, and ignored errors.
#include <cstdlib>
#include <memory>

#include "tests/cudasim/mutants/launch.h"
#include "tests/cudasim/mutants/streams.h"

namespace mutants {
namespace {

// --- stream-ordered memory ---

enum class Life { right, other_stream, used_early, event_early, cached };
// One stream allocates and fills memory, another one reads it; then it is freed.
template <Life mistake> bool lives(bool bug) {
  const auto is = [=](Life which) { return bug && mistake == which; };
  return in_all_policies([&] {
    const Array x(counting(n)), out(n), more(n);
    const Streams s;
    float* memory = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&memory), bytes, s.first);
    if (is(Life::used_early)) {  // by a stream that is not ordered after the allocation
      start_scale(s.second, x, memory, 3);
      cudaEventRecord(s.ready, s.second);
      cudaStreamWaitEvent(s.first, s.ready, 0);
    } else {
      start_scale(s.first, x, memory, 3);
    }
    cudaEventRecord(s.ready, s.first);
    cudaStreamWaitEvent(s.second, s.ready, 0);
    if (is(Life::event_early)) cudaEventRecord(s.finished, s.second);
    start_scale(s.second, memory, out, 2);
    if (!is(Life::event_early)) cudaEventRecord(s.finished, s.second);
    // Memory reused by the first stream, as by a caching allocator.
    if (!is(Life::cached)) cudaStreamWaitEvent(s.first, s.finished, 0);
    start_scale(s.first, x, memory, 100);
    start_scale(s.first, memory, more, 1);
    cudaStreamWaitEvent(s.first, s.finished, 0);
    cudaFreeAsync(memory, is(Life::other_stream) ? nullptr : s.first);
    if (is(Life::other_stream)) cudaStreamSynchronize(nullptr);
    for (cudaStream_t stream : {s.first, s.second}) cudaStreamSynchronize(stream);
    return out.get()[1] == 12 && more.get()[1] == 200;
  });
}
bool one_workspace_for_two_streams(bool bug) {
  return in_all_policies([&] {
    const Array x(counting(n)), one(n), another(n), first(n), second(n);
    const Streams s;
    start_scale(s.first, x, one, 2);
    start_scale(s.second, x, bug ? one : another, 3);
    start_scale(s.first, one, first, 1);
    start_scale(s.second, bug ? one : another, second, 1);
    for (cudaStream_t stream : {s.first, s.second}) cudaStreamSynchronize(stream);
    return first.get()[0] == 2 && second.get()[0] == 3;
  });
}

// --- events ---

enum class Events { right, other_stream, overwritten, swapped };
// The second stream produces values that the first one uses, twice. Before the second round the first stream uses the
// old values again.
template <Events mistake> bool reused(bool bug) {
  const auto is = [=](Events which) { return bug && mistake == which; };
  return in_all_policies([&] {
    const Array x(counting(n)), half(n), out(n), late(n);
    const Streams s;
    for (int round = 1; round <= 2; ++round) {
      if (round > 1 && !is(Events::overwritten)) cudaStreamWaitEvent(s.second, s.finished, 0);
      start_scale(s.second, x, half, float(round));
      cudaEventRecord(is(Events::swapped) ? s.finished : s.ready, is(Events::other_stream) ? s.first : s.second);
      cudaStreamWaitEvent(s.first, s.ready, 0);
      start_scale(s.first, half, out, 10);
      cudaEventRecord(is(Events::swapped) ? s.ready : s.finished, s.first);
      if (round == 1) {
        cudaStreamSynchronize(s.first);
        if (out.get()[1] != 20) return false;
        start_scale(s.first, half, late, 5);  // the second stream must not overtake this
        cudaEventRecord(s.finished, s.first);
      }
    }
    cudaStreamSynchronize(s.first);
    return out.get()[1] == 40 && late.get()[1] == 10;
  });
}
bool one_of_two_streams_not_waited_for(bool bug) {
  return in_all_policies([&] {
    const Array x(counting(n)), out(n), more(n);
    const Streams s;
    cudaEventRecord(s.ready, s.first);
    cudaStreamWaitEvent(s.second, s.ready, 0);
    start_scale(s.first, x, out, 2);
    start_scale(s.second, x, more, 3);
    cudaEventRecord(s.finished, s.second);
    if (!bug) cudaStreamWaitEvent(s.first, s.finished, 0);
    start_scale(s.first, more, out, 4);
    cudaStreamSynchronize(s.first);
    return out.get()[0] == 12;
  });
}
bool query_taken_for_a_wait(bool bug) {
  return in_all_policies([&] {
    const Array x(counting(n));
    const Streams s;
    float* result = pinned(0);
    cudaMemcpyAsync(result, x, bytes, cudaMemcpyDeviceToHost, s.first);
    cudaEventRecord(s.ready, s.first);
    while (cudaEventQuery(s.ready) == cudaErrorNotReady && !bug) {}
    const bool good = result[5] == 6;
    cudaStreamSynchronize(s.first);
    cudaFreeHost(result);
    return good;
  });
}
bool wait_for_another_stream(bool bug) {
  return in_all_policies([&] {
    const Array x(counting(n));
    const Streams s;
    float* result = pinned(0);
    cudaMemcpyAsync(result, x, bytes, cudaMemcpyDeviceToHost, s.first);
    cudaStreamSynchronize(bug ? s.second : s.first);
    const bool good = result[5] == 6;
    cudaStreamSynchronize(s.first);
    cudaFreeHost(result);
    return good;
  });
}

// --- graphs ---

__global__ void step_on(float* x, const float* rate, float by) { x[threadIdx.x] -= by + (rate ? *rate : 0); }
__global__ void add_up_to(const float* x, float* out, const float* count, unsigned n) {
  if (threadIdx.x < (count ? unsigned(*count) : n)) out[threadIdx.x] += x[threadIdx.x];
}

enum class Replay {
  right,
  pointer,
  scalar,
  length,
  overwritten,
  host_buffer,
  pageable,
  unordered,
  workspace,
  destroyed
};
// The objects that a graph keeps, and the inputs that change between two replays.
template <Replay mistake> bool replays(bool bug) {
  const auto is = [=](Replay which) { return bug && mistake == which; };
  return in_all_policies([&] {
    const Array x(n), weights(counting(n)), rate(std::vector<float>{1}), out(std::vector<float>(n, 0)),
        count(std::vector<float>{8});
    const Streams s;
    float *batch = pinned(1), *next = pinned(2), *workspace = nullptr;
    auto local = std::make_unique<std::vector<float>>(n, 1.0f);
    auto input = std::make_unique<Array>(n);
    cudaMalloc(reinterpret_cast<void**>(&workspace), bytes);
    // this mistake keeps the scalar in reused memory
    float* const number = is(Replay::overwritten) ? workspace : static_cast<float*>(rate);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
    cudaMemcpyAsync(x, is(Replay::pageable) ? local->data() : batch, bytes, cudaMemcpyHostToDevice, s.first);
    start_scale(s.first, is(Replay::pointer) ? *input : x, workspace, 1);
    simt::launch("step", 1, unsigned(n), 0, s.first, step_on, weights, is(Replay::scalar) ? nullptr : number,
                 is(Replay::scalar) ? 1.0f : 0.0f);
    simt::launch("add", 1, unsigned(n), 0, s.first, add_up_to, workspace, out,
                 is(Replay::length) ? nullptr : static_cast<float*>(count), 8u);
    bool good =
        cudaStreamEndCapture(s.first, &graph) == cudaSuccess && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    if (is(Replay::workspace)) cudaFree(std::exchange(workspace, nullptr));
    local.reset();
    if (is(Replay::pointer)) input->put(std::vector<float>(n, 1));
    good = good && cudaGraphLaunch(exec, s.first) == cudaSuccess;
    cudaStreamSynchronize(s.first);
    // The second replay has the next batch, another rate and all elements.
    if (is(Replay::host_buffer)) std::swap(batch, next);  // as with double buffering
    else std::fill_n(batch, n, 2.0f);
    if (is(Replay::pointer)) input = std::make_unique<Array>(std::vector<float>(n, 2));
    const float ten = 10, all = n;
    cudaMemcpyAsync(number, &ten, sizeof ten, cudaMemcpyHostToDevice, s.second);
    cudaMemcpyAsync(count, &all, sizeof all, cudaMemcpyHostToDevice, s.second);
    cudaEventRecord(s.ready, s.second);
    if (!is(Replay::unordered)) cudaStreamWaitEvent(s.first, s.ready, 0);
    if (is(Replay::destroyed)) cudaGraphExecDestroy(exec);
    good = cudaGraphLaunch(exec, s.first) == cudaSuccess && good;
    for (cudaStream_t stream : {s.first, s.second}) cudaStreamSynchronize(stream);
    if (!is(Replay::destroyed)) cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaFree(workspace);
    for (float* host : {batch, next}) cudaFreeHost(host);
    return good && weights.get()[20] == 21 - 11 && out.get()[0] == 3 && out.get()[n - 1] == 2;
  });
}

// --- ownership of memory ---

enum class Host { right, argument, pinned_by_free, pinned_by_device, past_pinned, kind, set, other_device };
template <Host mistake> bool host_memory(bool bug) {
  const auto is = [=](Host which) { return bug && mistake == which; };
  const Array x(counting(n)), out(n);
  std::vector<float> values = counting(n);
  const size_t pinned_elements = is(Host::past_pinned) ? n / 2 : n;
  float *on_host = nullptr, *elsewhere = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&on_host), pinned_elements * sizeof(float));
  cudaSetDevice(1);
  cudaMalloc(reinterpret_cast<void**>(&elsewhere), bytes);
  cudaMemset(elsewhere, 0, bytes);
  cudaDeviceSynchronize();
  cudaSetDevice(0);
  bool good = cudaMemcpyAsync(on_host, x, bytes, cudaMemcpyDeviceToHost, nullptr) == cudaSuccess;
  cudaStreamSynchronize(nullptr);
  // A kernel may read pinned memory.
  good = good && start_scale(nullptr, is(Host::argument) ? values.data() : on_host, out, 1);
  good = good && cudaMemcpy(out, values.data(), bytes,
                            is(Host::kind) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice) == cudaSuccess;
  good = good && cudaMemset(is(Host::set) ? values.data() : static_cast<float*>(out), 0, bytes) == cudaSuccess;
  if (mistake == Host::other_device) {
    if (!bug) cudaDeviceEnablePeerAccess(1, 0);
    good = good && start_scale(nullptr, elsewhere, out, 1);
  }
  cudaStreamSynchronize(nullptr);
  cudaFree(elsewhere);
  if (is(Host::pinned_by_free)) std::free(on_host);
  else good = (is(Host::pinned_by_device) ? cudaFree(on_host) : cudaFreeHost(on_host)) == cudaSuccess && good;
  return good && sum_of(out.get()) == 0;
}

/// Access to a device's memory is not access to its pool.
bool reads_another_pool(bool bug) {
  const Array out(n);
  float* elsewhere = nullptr;
  cudaStream_t stream = nullptr;
  cudaSetDevice(1);
  cudaStreamCreate(&stream);
  cudaMallocAsync(reinterpret_cast<void**>(&elsewhere), bytes, stream);
  cudaMemsetAsync(elsewhere, 0, bytes, stream);
  cudaStreamSynchronize(stream);
  cudaSetDevice(0);
  cudaDeviceEnablePeerAccess(1, 0);
  if (!bug) {
    cudaMemPool_t pool = nullptr;
    cudaDeviceGetDefaultMemPool(&pool, 1);
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, 0};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    cudaMemPoolSetAccess(pool, &access, 1);
  }
  const bool good = start_scale(nullptr, elsewhere, out, 1);
  cudaStreamSynchronize(nullptr);
  cudaFreeAsync(elsewhere, stream);
  cudaStreamDestroy(stream);
  return good && sum_of(out.get()) == 0;
}

// --- double frees ---

enum class Twice { right, inside, owners, pinned, event, stream, graph };
template <Twice mistake> bool given_back(bool bug) {
  const auto is = [=](Twice which) { return bug && mistake == which; };
  float *x = nullptr, *host = pinned(0);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraph_t graph = nullptr;
  cudaStreamCreate(&stream);
  cudaEventCreate(&event);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  cudaStreamEndCapture(stream, &graph);
  cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, stream);
  bool good = true;
  const auto both = [&](bool twice, auto free) {
    good = free() == cudaSuccess && good;
    if (twice) good = free() == cudaSuccess && good;
  };
  both(is(Twice::owners),
       [&, times = 0]() mutable { return times++ ? cudaFree(x) : cudaFreeAsync(x + is(Twice::inside), stream); });
  both(is(Twice::pinned), [&] { return cudaFreeHost(host); });
  both(is(Twice::event), [&] { return cudaEventDestroy(event); });
  both(is(Twice::graph), [&] { return cudaGraphDestroy(graph); });
  both(is(Twice::stream), [&] { return cudaStreamDestroy(stream); });
  return good;
}
bool event_used_after_its_end(bool bug) {
  const Streams s;
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  if (bug) cudaEventDestroy(event);
  const bool good = cudaEventRecord(event, s.first) == cudaSuccess;
  if (!bug) cudaEventDestroy(event);
  return good;
}

// --- ignored errors ---

enum class Ignored { right, allocation, launch, capture, copy };
// An operation is refused once; correct code notices and retries.
template <Ignored mistake> bool refused(bool bug) {
  const Array x(counting(n)), out(std::vector<float>(n, 0));
  const Streams s;
  float* memory = nullptr;
  if (mistake == Ignored::allocation) {
    fake::fail_allocation(1);
    const cudaError_t code = cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
    if (!bug && code != cudaSuccess) cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
  } else {
    cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
  }
  if (mistake == Ignored::launch) fake::fail_launch(1);
  const bool started = start_scale(s.first, x, memory, 2);
  if (!bug && !started) start_scale(s.first, x, memory, 2);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  for (int attempt = 0; attempt < (bug ? 1 : 2) && !graph; ++attempt) {
    cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
    start_scale(s.first, memory, out, 5);
    if (mistake == Ignored::capture && attempt == 0) cudaStreamQuery(s.first);  // not allowed while capturing
    cudaStreamEndCapture(s.first, &graph);
  }
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphLaunch(exec, s.first);
  cudaStreamSynchronize(s.first);
  std::vector<float> got(n);
  const size_t asked = mistake == Ignored::copy ? bytes + 4 : bytes;
  const cudaError_t code = cudaMemcpy(got.data(), out, asked, cudaMemcpyDeviceToHost);
  if (!bug && code != cudaSuccess) cudaMemcpy(got.data(), out, bytes, cudaMemcpyDeviceToHost);
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  cudaFree(memory);
  return got[2] == 30;
}

}  // namespace

std::vector<Case> lifetime_cases() {
  return {
      {"freed on a stream that does not use it", lives<Life::other_stream>, every},
      {"used by another stream before it is there", lives<Life::used_early>, every},
      {"event before the last use", lives<Life::event_early>, every},
      {"cached memory given to another stream", lives<Life::cached>, every},
      {"one workspace for two streams", one_workspace_for_two_streams, every},
      {"one of two streams not waited for", one_of_two_streams_not_waited_for, every},
      {"event recorded on the other stream", reused<Events::other_stream>, every},
      {"overwritten while another stream reads", reused<Events::overwritten>, every},
      {"two events swapped", reused<Events::swapped>, every},
      {"query taken for a wait", query_taken_for_a_wait, every},
      {"wait for another stream", wait_for_another_stream, every},
      {"graph with the last input's pointer", replays<Replay::pointer>, every},
      {"graph with the last step's scalar", replays<Replay::scalar>, every},
      {"graph with the last batch's length", replays<Replay::length>, every},
      {"graph that writes over its own scalar", replays<Replay::overwritten>, every},
      {"graph that copies from one of two buffers", replays<Replay::host_buffer>, every},
      {"graph that copies from pageable memory", replays<Replay::pageable>, every},
      {"replay that waits for no event", replays<Replay::unordered>, every},
      {"graph with a freed workspace", replays<Replay::workspace>, plain | asan},
      {"graph launched after its end", replays<Replay::destroyed>, every},
      {"kernel reads host memory", host_memory<Host::argument>, every},
      {"pinned memory given to free", host_memory<Host::pinned_by_free>, plain | asan},
      {"pinned memory given to cudaFree", host_memory<Host::pinned_by_device>, every},
      {"copy past the end of pinned memory", host_memory<Host::past_pinned>, every},
      {"copy of the wrong kind", host_memory<Host::kind>, every},
      {"host memory set by the device", host_memory<Host::set>, every},
      {"kernel reads another device's memory", host_memory<Host::other_device>, every},
      {"kernel reads another device's pool", reads_another_pool, every},
      {"freed from its middle", given_back<Twice::inside>, every},
      {"freed by two owners", given_back<Twice::owners>, every},
      {"pinned memory freed twice", given_back<Twice::pinned>, every},
      {"event destroyed twice", given_back<Twice::event>, every},
      {"stream destroyed twice", given_back<Twice::stream>, every},
      {"graph destroyed twice", given_back<Twice::graph>, every},
      {"event used after its end", event_used_after_its_end, every},
      {"refused allocation not looked at", refused<Ignored::allocation>, every},
      {"refused launch not looked at", refused<Ignored::launch>, every},
      {"failed capture not looked at", refused<Ignored::capture>, every},
      {"refused copy not looked at", refused<Ignored::copy>, every},
  };
}

}  // namespace mutants
