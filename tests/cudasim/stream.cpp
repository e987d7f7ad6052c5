// Streams of the fake devices: queues of work that run when the policy wants, in an order that CUDA allows.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "tests/cudasim/block.h"
#include "tests/cudasim/runtime.h"

namespace fake {
namespace {

using Clock = std::chrono::steady_clock;

SpinLock lock_;  // guards queues, marks and the list of streams
std::vector<CUstream_st*> streams_;
CUstream_st default_streams_[max_devices];

thread_local int device_ = 0;
std::atomic<int> sticky_{cudaSuccess};
SpinLock fault_lock_;
std::string fault_;

// One generator per device, so a seed gives the same draws although ranks are threads.
std::mt19937_64 random_[max_devices];
SpinLock random_lock_;

SpinLock launches_lock_;
std::map<std::string, int64_t> launches_;
std::atomic<int64_t> copies_, bytes_, waits_;

thread_local std::function<void()>* in_fiber_ = nullptr;

// Runs fn on the stream's own stack, so that ThreadSanitizer treats the stream as a thread.
void run_in_fiber(CUstream_st& stream, std::function<void()> fn) {
  static thread_local CUstream_st* entered = nullptr;
  if (!stream.fiber)
    stream.fiber = std::make_unique<simt::Fiber>(
        [] {
          CUstream_st* self = entered;
          (*in_fiber_)();
          self->fiber->end();
        },
        unsigned(stream.device));
  if (!stream.clock) stream.clock.create();
  simt::Clock outer;
  outer.current();
  auto* before = in_fiber_;
  auto* entered_before = entered;
  std::function<void()> both = [&] {
    stream.clock.enter();
    fn();
    outer.enter();
  };
  in_fiber_ = &both;
  entered = &stream;
  stream.fiber->enter();
  in_fiber_ = before;
  entered = entered_before;
}

void run_op(CUstream_st& stream, Op& op) {
  if (sticky_ != cudaSuccess) return;  // nothing runs after a sticky error
  const auto guarded = [&] {
    simt::acquire(op.order.get());
    const DeviceScope open;
    try {
      op.run();
    } catch (const simt::Fault& fault) { fail_device(cudaErrorLaunchFailure, fault.what); }
    op.run = nullptr;  // destroyed here, by the thread that ThreadSanitizer saw use its values
    simt::release(&stream.progress);
  };
  if (simt::with_tsan()) run_in_fiber(stream, guarded);
  else guarded();
}

/// Runs the next operation of a stream. False if there is none, if it has to wait, or if another thread is running one.
bool advance(CUstream_st* stream) {
  if (stream->running.test_and_set(std::memory_order_acquire)) return false;
  struct Running {
    std::atomic_flag& flag;
    ~Running() { flag.clear(std::memory_order_release); }
  } const running{stream->running};
  Op* op;  // the queue is a deque, so the element stays in place while others are appended
  {
    const std::lock_guard lock(lock_);
    if (stream->queue.empty()) return false;
    op = &stream->queue.front();
  }
  if (op->ready && sticky_ == cudaSuccess && !op->ready()) return false;
  run_op(*stream, *op);
  simt::acquire(op->order.get());  // before it is destroyed
  const std::lock_guard lock(lock_);
  stream->queue.pop_front();
  ++stream->done;
  return true;
}

std::vector<CUstream_st*> busy_streams(int device) {
  std::vector<CUstream_st*> found;
  const std::lock_guard lock(lock_);
  for (CUstream_st* stream : streams_)
    if ((device < 0 || stream->device == device) && !stream->queue.empty()) found.push_back(stream);
  return found;
}

uint64_t draw(int device) {
  const std::lock_guard lock(random_lock_);
  return random_[device]();
}

/// Random policy: before the host waits for this stream, lets other streams of the device do some of their work.
void let_others_go(CUstream_st* stream) {
  for (CUstream_st* other : busy_streams(stream->device))
    if (other != stream)
      for (uint64_t steps = draw(stream->device) % 4; steps > 0 && advance(other); --steps) {}
}

/// Advances the stream until done(). If it cannot move, the other streams are advanced: real devices work by
/// themselves.
template <class Done> void drive(CUstream_st* stream, Done done) {
  Clock::time_point last = Clock::now();
  if (settings().policy == Policy::random && !done()) let_others_go(stream);
  while (!done()) {
    bool moved = advance(stream);
    if (!moved && !done())
      for (CUstream_st* other : busy_streams(-1)) moved = advance(other) || moved;
    if (moved) {
      last = Clock::now();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (Clock::now() - last > std::chrono::seconds(300))
      fail_device(cudaErrorLaunchTimeout, "a stream made no progress for 300 s");
  }
}

}  // namespace

Settings& settings() {
  static Settings all = [] {
    Settings s;
    const auto number = [](const char* name, long fallback) {
      const char* text = std::getenv(name);
      return text && *text ? std::atol(text) : fallback;
    };
    if (const char* text = std::getenv("LOCKSTEP_FAKE_CUDA_STREAMS")) {
      const bool eager = !std::strcmp(text, "eager"), lazy = !std::strcmp(text, "lazy"),
                 random = !std::strcmp(text, "random");
      if (!eager && !lazy && !random) {
        std::fprintf(stderr, "cudasim: expected LOCKSTEP_FAKE_CUDA_STREAMS to be eager, lazy or random, got %s\n",
                     text);
        std::abort();
      }
      s.policy = eager ? Policy::eager : lazy ? Policy::lazy : Policy::random;
    }
    s.seed = uint64_t(number("LOCKSTEP_FAKE_CUDA_SEED", 1));
    s.devices = std::min(int(number("LOCKSTEP_FAKE_CUDA_DEVICES", 2)), max_devices);
    s.capability = int(number("LOCKSTEP_FAKE_CUDA_CAPABILITY", 90));
    s.code = int(number("LOCKSTEP_FAKE_CUDA_CODE", 75));
    s.peers = number("LOCKSTEP_FAKE_CUDA_PEERS", 1) != 0;
    s.memory = size_t(number("LOCKSTEP_FAKE_CUDA_MEMORY", 2048)) << 20;
    s.driver_version =
        std::getenv("LOCKSTEP_FAKE_CUDA_NO_DRIVER") ? 0 : int(number("LOCKSTEP_FAKE_CUDA_DRIVER", CUDART_VERSION));
    if (s.driver_version < CUDART_VERSION) s.driver = cudaErrorInsufficientDriver;
    else if (s.devices <= 0) s.driver = cudaErrorNoDevice;
    for (int d = 0; d < max_devices; ++d) {
      default_streams_[d].device = d;
      streams_.push_back(&default_streams_[d]);
      random_[d].seed(s.seed * max_devices + uint64_t(d));
    }
    allocation_failure.set(number("LOCKSTEP_FAKE_CUDA_FAIL_ALLOCATION", 0), cudaErrorMemoryAllocation);
    launch_failure.set(number("LOCKSTEP_FAKE_CUDA_FAIL_LAUNCH", 0), cudaErrorLaunchOutOfResources);
    run_failure.set(number("LOCKSTEP_FAKE_CUDA_FAIL_RUN", 0), cudaErrorIllegalAddress);
    return s;
  }();
  return all;
}

void set_policy(Policy policy, uint64_t seed) {
  settings().policy = policy;
  settings().seed = seed;
  for (int d = 0; d < max_devices; ++d) random_[d].seed(seed * max_devices + uint64_t(d));
}
Policy policy() { return settings().policy; }

int current_device() { return device_; }
void select_device(int device) { device_ = device; }

cudaError_t sticky() { return cudaError_t(sticky_.load()); }
std::string first_fault() {
  const std::lock_guard lock(fault_lock_);
  return fault_;
}
void fail_device(cudaError_t code, const std::string& what) {
  const std::lock_guard lock(fault_lock_);
  if (sticky_ != cudaSuccess) return;
  std::fprintf(stderr, "cudasim: %s\n", what.c_str());
  fault_ = what;
  sticky_ = code;
}
void reset() {
  // drops the remaining work
  for (CUstream_st* stream : busy_streams(-1)) drive(stream, [&] { return is_idle(stream); });
  const std::lock_guard lock(fault_lock_);
  fault_.clear();
  sticky_ = cudaSuccess;
}

CUstream_st* find_stream(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return &default_streams_[device_];
  return stream->alive ? stream : nullptr;
}
CUstream_st* make_stream() {
  const std::lock_guard lock(lock_);
  auto* stream = new CUstream_st;
  stream->device = device_;
  streams_.push_back(stream);
  return stream;
}
void destroy_stream(CUstream_st* stream) {
  drive(stream, [&] { return is_idle(stream); });
  const std::lock_guard lock(lock_);
  stream->alive = false;
  std::erase(streams_, stream);
  stream->clock.destroy();
  stream->fiber.reset();
}

thread_local CUstream_st* capturing = nullptr;
bool end_capture(CUgraph_st* graph, CUstream_st* first) {
  std::vector<bool> awaited(graph->nodes.size());
  for (const size_t last : first->after) awaited[last] = true;
  for (size_t i = graph->nodes.size(); i-- > 0;)  // nodes come after their predecessors in the list
    if (awaited[i])
      for (const size_t before : graph->nodes[i].after) awaited[before] = true;
  const std::lock_guard lock(lock_);
  for (CUstream_st* stream : streams_) {
    if (stream->capture != graph) continue;
    stream->capture = nullptr;
    stream->joined = false;
    stream->after.clear();
  }
  graph->open = false;
  return std::all_of(awaited.begin(), awaited.end(), [](bool is) { return is; });
}
uint64_t draw_below(int device, uint64_t count) { return draw(device) % count; }

bool is_idle(CUstream_st* stream) { return stream->done.load() == stream->issued; }

void enqueue(cudaStream_t handle, std::function<void()> run, std::function<bool()> ready) {
  CUstream_st* stream = find_stream(handle);
  Op op{std::move(run), std::move(ready)};
  simt::release(op.order.get());
  if (stream->capture) {
    std::vector<Node>& nodes = stream->capture->nodes;
    nodes.push_back({std::move(op), std::exchange(stream->after, {nodes.size()}), stream->joined});
    return;
  }
  {
    const std::lock_guard lock(lock_);
    stream->queue.push_back(std::move(op));
    ++stream->issued;
  }
  // Eager: run it at once, unless it has to wait for another stream.
  if (settings().policy == Policy::eager)
    while (advance(stream)) {}
}

void note_launch(const char* name) {
  const std::lock_guard lock(launches_lock_);
  ++launches_[name];
}
void note_copy_to_host(size_t bytes) {
  ++copies_;
  bytes_ += int64_t(bytes);
}
void note_wait() { ++waits_; }
ToHost take_to_host() { return {copies_.exchange(0), bytes_.exchange(0), waits_.exchange(0)}; }
std::map<std::string, int64_t> take_launches() {
  const std::lock_guard lock(launches_lock_);
  return std::exchange(launches_, {});
}

void finish(cudaStream_t handle) {
  CUstream_st* stream = find_stream(handle);
  const uint64_t upto = stream->issued;
  drive(stream, [&] { return stream->done.load() >= upto; });
  simt::acquire(&stream->progress);
}
void finish_device(int device) {
  for (CUstream_st* stream : busy_streams(device)) drive(stream, [&] { return is_idle(stream); });
  const std::lock_guard lock(lock_);
  for (CUstream_st* stream : streams_)
    if (stream->device == device) simt::acquire(&stream->progress);
}
void push_device(int device) {
  for (CUstream_st* stream : busy_streams(device)) advance(stream);
}
void finish_mark(CUstream_st* stream, const std::shared_ptr<Mark>& mark) {
  drive(stream, [&] { return mark->passed.load() || sticky_ != cudaSuccess; });
  simt::acquire(&mark->order);
}

void poll(CUstream_st* stream) {
  // Repeated polling must see progress under every policy.
  if (settings().policy == Policy::random || ++stream->polls % 4 == 0 || settings().policy == Policy::eager)
    if (!advance(stream))
      for (CUstream_st* other : busy_streams(-1)) advance(other);
}

cudaError_t step() {
  settings();
  if (settings().policy == Policy::random) {
    std::vector<CUstream_st*> some = busy_streams(device_);
    const uint64_t bits = draw(device_);
    if (!some.empty() && bits >> 32 & 1) {
      CUstream_st* chosen = some[bits % some.size()];
      for (uint64_t n = 1 + (bits >> 40) % 3; n > 0 && advance(chosen); --n) {}
    }
  } else if (settings().policy == Policy::lazy && usage(device_).used > settings().memory / 4) {
    // Free memory whose release is queued: a real device would have released it by now.
    for (CUstream_st* stream : busy_streams(device_))
      while (advance(stream)) {}
  }
  return sticky();
}

}  // namespace fake

namespace simt {

int launch_device() { return fake::current_device(); }
bool is_argument(const char* op, int device, size_t number, const void* p) {
  const int of = p ? fake::device_of(p) : device;
  if (of == device || (of >= 0 ? fake::reaches(device, p) : fake::pinned_part(p, 1) == fake::Pinned::all)) return true;
  fake::fail_device(cudaErrorIllegalAddress,
                    std::string(op) + ": argument " + std::to_string(number) + " points to memory of " +
                        (of < 0 ? "the host, which is not pinned" : "another device, without access to it"));
  return false;
}

cudaError_t enqueue_kernel(const char* op, cudaStream_t stream, std::function<void()> run) {
  if (const cudaError_t code = fake::step(); code != cudaSuccess) return code;
  if (!fake::find_stream(stream)) return cudaErrorInvalidResourceHandle;
  if (fake::settings().capability < fake::settings().code) return cudaErrorNoKernelImageForDevice;
  if (fake::find_stream(stream)->device != fake::current_device()) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t code = fake::launch_failure.next(); code != cudaSuccess) return code;
  fake::note_launch(op);
  fake::enqueue(stream, [op, run = std::move(run)] {
    if (const cudaError_t code = fake::run_failure.next(); code != cudaSuccess)
      return fake::fail_device(code, std::string(op) + ": made to fail");
    run();
  });
  return cudaSuccess;
}

}  // namespace simt
