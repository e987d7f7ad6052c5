#pragma once
// Internals of the fake CUDA runtime: devices and their memory (memory.cpp), streams (stream.cpp) and the functions of
// the API (cudart.cpp, graph.cpp).
#include <cuda_runtime_api.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cudasim/fake.h"
#include "tests/cudasim/fiber.h"

namespace fake {

/// A lock that ThreadSanitizer does not see: a mutex would make it assume an order between all its users. What happens
/// while it is held is not seen either.
class SpinLock {
 public:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) sched_yield();
    simt::begin_ignore();
  }
  void unlock() {
    simt::end_ignore();
    taken_.clear(std::memory_order_release);
  }

 private:
  std::atomic_flag taken_;
};

/// The simulated machine; set by environment variables (docs/testing-cuda.md).
struct Settings {
  Policy policy = Policy::lazy;
  uint64_t seed = 1;
  int devices = 2, capability = 90;
  int code = 75;                    ///< the oldest compute capability that the build has code for
  bool peers = true;                ///< devices can be given access to each other's memory
  size_t memory = size_t(2) << 30;  ///< bytes per device
  cudaError_t driver = cudaSuccess;
  int driver_version = CUDART_VERSION;  ///< 0: no driver
};
/// The settings of this process, read from the environment at first use.
Settings& settings();
/// The most devices that can be simulated.
constexpr int max_devices = 8;

/// The current device of this thread.
int current_device();
void select_device(int device);

// --- memory ---

/// While it lives, this thread may access the memory of devices. Kernels and copies run inside a scope; other host code
/// that touches device memory faults.
class DeviceScope {
 public:
  DeviceScope();
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
};

/// Allocates memory; nullptr if there is not enough. Its lifetime starts with begin_memory() and ends with
/// end_memory(), both in the order of a stream.
void* reserve_memory(size_t bytes, int device, bool pooled);
void begin_memory(void* p);
void end_memory(void* p);
/// memset(); of large memory it sets only the two ends.
void set_memory(void* p, int value, size_t bytes);
/// Marks memory as freed by the host, so no new work may use it; false if it is no live allocation.
bool retire_memory(void* p);
/// True if all of the range lies in one live allocation.
bool is_inside(const void* p, size_t bytes);
/// How much of a range is pinned host memory.
enum class Pinned { none, part, all };
/// Tells how much of the range is pinned.
Pinned pinned_part(const void* p, size_t bytes);
/// True if `device` can access the memory at `p`: its own, or another device's that it was given access to.
bool reaches(int device, const void* p);
/// True if the memory at `p` came from a pool.
bool is_pooled(const void* p);
/// Bytes of a device: allocated, allocated from the pool, and cached by the pool.
struct Usage {
  size_t used = 0, pool_used = 0, pool_cached = 0;
};
Usage usage(int device);
/// Returns the pool's cached bytes to the device.
void trim_pool(int device);

/// Returns an error code once, at the n-th call after set().
class Countdown {
 public:
  /// 1 is the next call; 0 clears it.
  void set(int64_t nth, cudaError_t code) {
    code_ = code;
    left_ = nth;
  }
  /// cudaSuccess, except for the chosen call.
  cudaError_t next() { return left_ > 0 && --left_ == 0 ? code_ : cudaSuccess; }

 private:
  std::atomic<int64_t> left_{0};
  cudaError_t code_ = cudaSuccess;
};
extern Countdown allocation_failure, launch_failure, run_failure;

// --- streams ---

/// An operation on a stream. It runs once `ready` returns true. `ready` is polled, and may itself advance the work that
/// it waits for.
struct Op {
  std::function<void()> run;
  std::function<bool()> ready;
  std::shared_ptr<char> order = std::make_shared<char>();  // for ThreadSanitizer: ordered after the host's earlier work
};

/// An event recorded in a stream.
struct Mark {
  std::atomic<bool> passed{false};
  char order = 0;
  double milliseconds = 0;  // when it was passed
};

/// Puts work on a stream, or into the graph that the stream captures.
void enqueue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready = nullptr);
/// Counts a launch for take_launches().
void note_launch(const char* name);
/// Counts a copy or a wait for take_to_host().
void note_copy_to_host(size_t bytes);
void note_wait();
/// Waits until the stream has done all work issued so far.
void finish(cudaStream_t stream);
/// Waits until all streams of a device have done all work issued so far.
void finish_device(int device);
/// Called by each API function: lets streams advance as the policy wants; returns the sticky error, if any.
cudaError_t step();
/// Makes this the device's sticky error.
void fail_device(cudaError_t code, const std::string& what);
/// The sticky error, or cudaSuccess.
cudaError_t sticky();

/// Base of all objects behind handles. They are never freed, so that the use of a stale handle is detected.
struct Handle {
  Handle() {
    if (__lsan_ignore_object) __lsan_ignore_object(this);
  }
  bool alive = true;
};
/// Work in a graph.
struct Node {
  Op op;
  std::vector<size_t> after;  // the nodes that it must follow
  bool beside = false;        // true: captured on a stream that joined the capture
};

}  // namespace fake

/// A captured graph.
struct CUgraph_st : fake::Handle {
  std::vector<fake::Node> nodes;
  bool open = true;  // true: streams still add to it
};
/// An instantiated graph, which can be launched repeatedly.
struct CUgraphExec_st : fake::Handle {
  std::vector<fake::Node> nodes;
};
/// A stream: a queue of work for one device.
struct CUstream_st : fake::Handle {
  int device = 0;
  std::deque<fake::Op> queue;
  uint64_t issued = 0;
  std::atomic<uint64_t> done{0};
  std::atomic_flag running;
  CUgraph_st* capture = nullptr;  // the graph that it adds to instead of running
  // joined: it captures because it waited for an event of a capturing stream; spoiled: the capture failed.
  bool joined = false, spoiled = false;
  std::vector<size_t> after;  // nodes of the graph that its next work follows
  char progress = 0;          // for ThreadSanitizer: orders the stream's finished work
  simt::Clock clock;
  std::unique_ptr<simt::Fiber> fiber;
  uint64_t polls = 0;
};
/// An event.
struct CUevent_st : fake::Handle {
  int device = 0;
  bool timed = false;
  CUstream_st* stream = nullptr;
  std::vector<size_t> after;  // if recorded in a capture: the nodes that it follows
  CUgraph_st* capture = nullptr;
  std::shared_ptr<fake::Mark> mark;
};

namespace fake {
/// The stream of a handle; nullptr if it was destroyed.
CUstream_st* find_stream(cudaStream_t stream);
/// Creates a stream on the current device.
CUstream_st* make_stream();
/// Finishes the stream's work and destroys it.
void destroy_stream(CUstream_st* stream);
/// True if the stream has no work left.
bool is_idle(CUstream_st* stream);
/// Ends the capture on all its streams; false if the first stream does not wait for all captured work.
bool end_capture(CUgraph_st* graph, CUstream_st* first);
/// Draws a random number below `count`.
uint64_t draw_below(int device, uint64_t count);
/// The stream on which this thread captures, or nullptr.
extern thread_local CUstream_st* capturing;
/// Advances every stream of a device by one step.
void push_device(int device);
/// Advances the stream until the mark is passed.
void finish_mark(CUstream_st* stream, const std::shared_ptr<Mark>& mark);
/// Called when the host asks whether the stream is done: may advance it by one step.
void poll(CUstream_st* stream);
}  // namespace fake
