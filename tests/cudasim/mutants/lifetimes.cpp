// Planted bugs in ordering and lifetimes: stream-ordered memory, events, graphs, and host memory.
#include <cstdlib>
#include <memory>

#include "tests/cudasim/mutants/launch.h"
#include "tests/cudasim/mutants/streams.h"

namespace mutants {
namespace {

// --- stream-ordered memory ---

// One stream allocates and fills memory, another one reads it; then it is reused by the first one, as by a caching
// allocator, and freed.
bool lives(Bug bug) {
  const bool reuses = bug.mistake != "freed_early";
  return in_all_policies([&] {
    const Array x(counting(n)), out(n), more(n);
    const Streams s;
    float* memory = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&memory), bytes, s.first);
    if (bug("used_early")) {  // by a stream that is not ordered after the allocation
      start_scale(s.second, x, memory, 3);
      behind(s.first, s.second, s.ready);
    } else {
      start_scale(s.first, x, memory, 3);
    }
    behind(s.second, s.first, s.ready);
    if (bug("event_early")) cudaEventRecord(s.finished, s.second);
    start_scale(s.second, memory, out, 2);
    if (!bug("event_early")) cudaEventRecord(s.finished, s.second);
    if (!bug("cached") && !bug("freed_early")) cudaStreamWaitEvent(s.first, s.finished, 0);
    if (reuses) start_scale(s.first, x, memory, 100);
    if (reuses) start_scale(s.first, memory, more, 1);
    if (!bug("freed_early")) cudaStreamWaitEvent(s.first, s.finished, 0);
    cudaFreeAsync(memory, bug("other_stream") ? nullptr : s.first);
    if (bug("other_stream")) cudaStreamSynchronize(nullptr);
    for (cudaStream_t stream : {s.first, s.second}) cudaStreamSynchronize(stream);
    return out.get()[1] == 12 && (!reuses || more.get()[1] == 200);
  });
}
bool one_workspace_for_two_streams(Bug bug) {
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

// The second stream produces values that the first one uses, twice. Before the second round the first stream uses the
// old values again.
bool reused(Bug bug) {
  return in_all_policies([&] {
    const Array x(counting(n)), half(n), out(n), late(n);
    const Streams s;
    for (int round = 1; round <= 2; ++round) {
      if (round > 1 && !bug("overwritten")) cudaStreamWaitEvent(s.second, s.finished, 0);
      if (bug("before")) cudaEventRecord(s.ready, s.second);
      start_scale(s.second, x, half, float(round));
      if (!bug("before"))
        cudaEventRecord(bug("swapped") ? s.finished : s.ready, bug("other_stream") ? s.first : s.second);
      if (!bug("none")) cudaStreamWaitEvent(s.first, s.ready, 0);
      start_scale(s.first, half, out, 10);
      cudaEventRecord(bug("swapped") ? s.ready : s.finished, s.first);
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
bool one_of_two_streams_not_waited_for(Bug bug) {
  return in_all_policies([&] {
    const Array x(counting(n)), out(n), more(n);
    const Streams s;
    behind(s.second, s.first, s.ready);
    start_scale(s.first, x, out, 2);
    start_scale(s.second, x, more, 3);
    cudaEventRecord(s.finished, s.second);
    if (!bug) cudaStreamWaitEvent(s.first, s.finished, 0);
    start_scale(s.first, more, out, 4);
    cudaStreamSynchronize(s.first);
    return out.get()[0] == 12;
  });
}

// --- graphs ---

__global__ void step_on(float* x, const float* rate, float by) { x[threadIdx.x] -= by + (rate ? *rate : 0); }
__global__ void add_up_to(const float* x, float* out, const float* count, unsigned n) {
  if (threadIdx.x < (count ? unsigned(*count) : n)) out[threadIdx.x] += x[threadIdx.x];
}

// The objects that a graph keeps, and the inputs that change between two replays.
bool replays(Bug bug) {
  return in_all_policies([&] {
    const Array x(n), weights(counting(n)), rate(std::vector<float>{1}), out(std::vector<float>(n, 0)),
        count(std::vector<float>{8});
    const Streams s;
    float *batch = pinned(1), *next = pinned(2), *workspace = nullptr;
    auto local = std::make_unique<std::vector<float>>(n, 1.0f);
    auto input = std::make_unique<Array>(n);
    cudaMalloc(reinterpret_cast<void**>(&workspace), bytes);
    // this mistake keeps the scalar in reused memory
    float* const number = bug("overwritten") ? workspace : static_cast<float*>(rate);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed);
    cudaMemcpyAsync(x, bug("pageable") ? local->data() : batch, bytes, cudaMemcpyHostToDevice, s.first);
    start_scale(s.first, bug("pointer") ? *input : x, workspace, 1);
    simt::launch("step", 1, unsigned(n), 0, s.first, step_on, weights, bug("scalar") ? nullptr : number,
                 bug("scalar") ? 1.0f : 0.0f);
    simt::launch("add", 1, unsigned(n), 0, s.first, add_up_to, workspace, out,
                 bug("length") ? nullptr : static_cast<float*>(count), 8u);
    bool good =
        cudaStreamEndCapture(s.first, &graph) == cudaSuccess && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    if (bug("workspace")) cudaFree(std::exchange(workspace, nullptr));
    local.reset();
    if (bug("pointer")) input->put(std::vector<float>(n, 1));
    good = good && cudaGraphLaunch(exec, s.first) == cudaSuccess;
    cudaStreamSynchronize(s.first);
    // The second replay has the next batch, another rate and all elements.
    if (bug("host_buffer")) std::swap(batch, next);  // as with double buffering
    else std::fill_n(batch, n, 2.0f);
    if (bug("pointer")) input = std::make_unique<Array>(std::vector<float>(n, 2));
    const float ten = 10, all = n;
    cudaMemcpyAsync(number, &ten, sizeof ten, cudaMemcpyHostToDevice, s.second);
    cudaMemcpyAsync(count, &all, sizeof all, cudaMemcpyHostToDevice, s.second);
    cudaEventRecord(s.ready, s.second);
    if (!bug("unordered")) cudaStreamWaitEvent(s.first, s.ready, 0);
    if (bug("destroyed")) cudaGraphExecDestroy(exec);
    good = cudaGraphLaunch(exec, s.first) == cudaSuccess && good;
    for (cudaStream_t stream : {s.first, s.second}) cudaStreamSynchronize(stream);
    if (!bug("destroyed")) cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaFree(workspace);
    for (float* host : {batch, next}) cudaFreeHost(host);
    return good && weights.get()[20] == 21 - 11 && out.get()[0] == 3 && out.get()[n - 1] == 2;
  });
}

// --- ownership of memory ---

bool host_memory(Bug bug) {
  const Array x(counting(n)), out(n);
  std::vector<float> values = counting(n);
  const size_t pinned_elements = bug("past_pinned") ? n / 2 : n;
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
  good = good && start_scale(nullptr, bug("argument") ? values.data() : on_host, out, 1);
  good = good && cudaMemcpy(out, values.data(), bytes,
                            bug("kind") ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice) == cudaSuccess;
  good = good && cudaMemset(bug("set") ? values.data() : static_cast<float*>(out), 0, bytes) == cudaSuccess;
  if (bug.mistake == "other_device") {
    if (!bug) cudaDeviceEnablePeerAccess(1, 0);
    good = good && start_scale(nullptr, elsewhere, out, 1);
  }
  cudaStreamSynchronize(nullptr);
  cudaFree(elsewhere);
  if (bug("pinned_by_free")) std::free(on_host);
  else good = (bug("pinned_by_device") ? cudaFree(on_host) : cudaFreeHost(on_host)) == cudaSuccess && good;
  return good && sum_of(out.get()) == 0;
}

/// Access to a device's memory is not access to its pool.
bool reads_another_pool(Bug bug) {
  const Array out(n);
  float* elsewhere = nullptr;
  cudaStream_t stream = nullptr;
  cudaSetDevice(1);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
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

bool given_back(Bug bug) {
  float *x = nullptr, *host = pinned(0);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraph_t graph = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreate(&event);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  cudaStreamEndCapture(stream, &graph);
  cudaMallocAsync(reinterpret_cast<void**>(&x), bytes, stream);
  bool good = true;
  const auto both = [&](bool twice, auto free) {
    good = free() == cudaSuccess && good;
    if (twice) good = free() == cudaSuccess && good;
  };
  both(bug("memory") || bug("owners"), [&, times = 0]() mutable {
    return times++ && bug("owners") ? cudaFree(x) : cudaFreeAsync(x + bug("inside"), stream);
  });
  both(bug("pinned"), [&] { return cudaFreeHost(host); });
  both(bug("event"), [&] { return cudaEventDestroy(event); });
  both(bug("graph"), [&] { return cudaGraphDestroy(graph); });
  both(bug("stream"), [&] { return cudaStreamDestroy(stream); });
  return good;
}
bool event_used_after_its_end(Bug bug) {
  const Streams s;
  cudaEvent_t event = nullptr;
  cudaEventCreate(&event);
  if (bug) cudaEventDestroy(event);
  const bool good = cudaEventRecord(event, s.first) == cudaSuccess;
  if (!bug) cudaEventDestroy(event);
  return good;
}

const Cases cases{
    {"freed too early", lives, "freed_early"},
    {"freed on a stream that does not use it", lives, "other_stream"},
    {"used by another stream before it is there", lives, "used_early"},
    {"event before the last use", lives, "event_early"},
    {"cached memory given to another stream", lives, "cached"},
    {"one workspace for two streams", one_workspace_for_two_streams},
    {"one of two streams not waited for", one_of_two_streams_not_waited_for},
    {"no wait for an event", reused, "none"},
    {"event recorded before the work", reused, "before"},
    {"event recorded on the other stream", reused, "other_stream"},
    {"overwritten while another stream reads", reused, "overwritten"},
    {"two events swapped", reused, "swapped"},
    {"graph with the last input's pointer", replays, "pointer"},
    {"graph with the last step's scalar", replays, "scalar"},
    {"graph with the last batch's length", replays, "length"},
    {"graph that writes over its own scalar", replays, "overwritten"},
    {"graph that copies from one of two buffers", replays, "host_buffer"},
    {"graph that copies from pageable memory", replays, "pageable"},
    {"replay that waits for no event", replays, "unordered"},
    {"graph with a freed workspace", replays, "workspace", plain | asan},
    {"graph launched after its end", replays, "destroyed"},
    {"kernel reads host memory", host_memory, "argument"},
    {"pinned memory given to free", host_memory, "pinned_by_free", plain | asan},
    {"pinned memory given to cudaFree", host_memory, "pinned_by_device"},
    {"copy past the end of pinned memory", host_memory, "past_pinned"},
    {"copy of the wrong kind", host_memory, "kind"},
    {"host memory set by the device", host_memory, "set"},
    {"kernel reads another device's memory", host_memory, "other_device"},
    {"kernel reads another device's pool", reads_another_pool},
    {"freed twice", given_back, "memory"},
    {"freed from its middle", given_back, "inside"},
    {"freed by two owners", given_back, "owners"},
    {"pinned memory freed twice", given_back, "pinned"},
    {"event destroyed twice", given_back, "event"},
    {"stream destroyed twice", given_back, "stream"},
    {"graph destroyed twice", given_back, "graph"},
    {"event used after its end", event_used_after_its_end},
};

}  // namespace
}  // namespace mutants
