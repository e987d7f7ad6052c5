#pragma once
// Inside the fake CUDA runtime: devices and their memory (memory.cpp), streams (stream.cpp), the functions of the API
// (cudart.cpp, graph.cpp).
#include <cuda_runtime_api.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cudasim/fake.h"
#include "tests/cudasim/fiber.h"

namespace fake {

/// Not seen by ThreadSanitizer, to which a mutex would order whatever two threads do around it; nor what happens
/// inside.
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

struct Settings {
  Policy policy = Policy::lazy;
  uint64_t seed = 1;
  int devices = 2, capability = 90;
  size_t memory = size_t(2) << 30;  ///< of each device
  cudaError_t driver = cudaSuccess;
  int driver_version = CUDART_VERSION;  ///< 0: none
};
Settings& settings();
constexpr int most_devices = 8;

int current_device();
void select_device(int device);

// --- memory ---

/// While it lives this thread may touch the memory of devices. Kernels and copies run inside one; other host code
/// faults.
class DeviceScope {
 public:
  DeviceScope();
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
};

/// Takes memory, whose life begins with begin_memory() and ends with end_memory(), both in the order of a stream.
/// nullptr when there is not enough.
void* reserve_memory(size_t bytes, int device, bool pooled);
void begin_memory(void* p);
void end_memory(void* p);
/// As memset; of what is large only its ends.
void set_memory(void* p, int value, size_t bytes);
/// Marks it as given back by the host, so that nothing new may be done with it; false when it is no live allocation.
bool retire_memory(void* p);
/// Whether all of it lies in one live allocation.
bool is_inside(const void* p, size_t bytes);
/// Whether all of it is pinned host memory.
enum class Pinned { none, part, all };
Pinned pinned_part(const void* p, size_t bytes);
/// Whether the current device was given access to the memory of `peer`.
bool reaches(int device, int peer);
struct Usage {
  size_t used = 0, pool_used = 0, pool_cached = 0;
};
Usage usage(int device);
void trim_pool(int device);

/// The n-th call from its setting on is true, once.
class Countdown {
 public:
  void set(int64_t nth, cudaError_t code) {
    code_ = code;
    left_ = nth;
  }
  /// cudaSuccess but for that call.
  cudaError_t next() { return left_ > 0 && --left_ == 0 ? code_ : cudaSuccess; }

 private:
  std::atomic<int64_t> left_{0};
  cudaError_t code_ = cudaSuccess;
};
extern Countdown allocation_failure, launch_failure, run_failure;

// --- streams ---

/// Something on a stream. `ready` is asked before, until it says yes: what is waited for may need pushing, which it may
/// do.
struct Op {
  std::function<void()> run;
  std::function<bool()> ready;
  std::shared_ptr<char> order = std::make_shared<char>();  // after what its host thread did, for ThreadSanitizer
};

/// A point in a stream.
struct Mark {
  std::atomic<bool> passed{false};
  char order = 0;
  double milliseconds = 0;  // when
};

/// Puts work on a stream, or into the graph that it captures.
void enqueue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready = nullptr);
/// For take_launches().
void note_launch(const char* name);
/// For take_to_host().
void note_copy_to_host(size_t bytes);
void note_wait();
/// Waits until the stream has done what it was given.
void finish(cudaStream_t stream);
/// All streams of a device.
void finish_device(int device);
/// Lets streams move as the policy wants at this call; returns the sticky error, if there is one.
cudaError_t step();
/// The error of the device from now on.
void fail_device(cudaError_t code, const std::string& what);
cudaError_t sticky();

}  // namespace fake

namespace fake {
/// What handles point to. It is never freed, so that a stale handle is known for one.
struct Handle {
  Handle() {
    if (__lsan_ignore_object) __lsan_ignore_object(this);
  }
  bool alive = true;
};
}  // namespace fake

namespace fake {
/// Work in a graph, and what of the graph it comes after.
struct Node {
  Op op;
  std::vector<size_t> after;
  bool beside = false;  // it was captured on a stream that joined
};
}  // namespace fake

/// Work that is run again and again.
struct CUgraph_st : fake::Handle {
  std::vector<fake::Node> nodes;
  bool open = true;  // streams still add to it
};
struct CUgraphExec_st : fake::Handle {
  std::vector<fake::Node> nodes;
};
struct CUstream_st : fake::Handle {
  int device = 0;
  std::deque<fake::Op> queue;
  uint64_t issued = 0;
  std::atomic<uint64_t> done{0};
  std::atomic_flag running;
  CUgraph_st* capture = nullptr;  // what it adds to instead of running
  bool joined = false,
       spoiled = false;       // it captures since it waited for an event of one that does; the capture failed
  std::vector<size_t> after;  // of the graph, what its next work comes after
  char progress = 0;          // for ThreadSanitizer: what the stream has done
  simt::Clock clock;
  std::unique_ptr<simt::Fiber> fiber;
  uint64_t polls = 0;
};
struct CUevent_st : fake::Handle {
  int device = 0;
  bool timed = false;
  CUstream_st* stream = nullptr;
  std::vector<size_t> after;  // when recorded in a capture
  CUgraph_st* capture = nullptr;
  std::shared_ptr<fake::Mark> mark;
};

namespace fake {
/// The stream of a handle; nullptr for one that was destroyed.
CUstream_st* find_stream(cudaStream_t stream);
CUstream_st* make_stream();
void destroy_stream(CUstream_st* stream);
bool is_idle(CUstream_st* stream);
/// Ends the capture on all its streams; false when there is work that the first one does not wait for.
bool end_capture(CUgraph_st* graph, CUstream_st* first);
/// A number below `count`: drawn.
uint64_t draw_below(int device, uint64_t count);
/// The stream on which this thread captures.
extern thread_local CUstream_st* capturing;
/// A step of every stream of a device.
void push_device(int device);
/// Goes on until the mark is passed.
void finish_mark(CUstream_st* stream, const std::shared_ptr<Mark>& mark);
/// A step of a stream on behalf of who asks whether it is ready.
void poll(CUstream_st* stream);
}  // namespace fake
