// CUDA graphs. A replay uses the addresses of the recording, so a graph owns the memory that was allocated during its
// recording. Memory freed during the recording is reused only by the same recording. All memory is released when the
// graph and the tensors in its memory have been destroyed. Older memory that is freed during the recording or later
// (for example a growing table of angles) is kept as long as the graph, because replays may read it.
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/at_end.h"
#include "base/check.h"
#include "tensor/cuda/capture.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"
#include "tensor/graph.h"
#include "tensor/memory.h"

namespace lockstep::cuda {
namespace {

/// Memory that has been freed but that replays of graphs may still read. The last of these graphs to be destroyed
/// releases it, while no mutex is held.
struct Kept {
  Kept(void* data, int device, void* stream) : data(data), device(device), stream(stream) {}
  ~Kept() {
    if (!deallocate_captured(data, device, stream)) free_in_order(data, device, stream);
  }
  Kept(const Kept&) = delete;
  void* data;
  int device;
  void* stream;
};

/// The memory of a recording. Freed blocks are reused but never split, because the layers of a model have equal shapes.
class Arena {
 public:
  explicit Arena(int device) : device_(device) {}
  ~Arena() {
    for (const auto& [data, bytes] : all_) cudaFree(data);
  }
  Arena(const Arena&) = delete;

  void* allocate(size_t bytes, cudaStream_t stream) {
    bytes = (bytes + 511) / 512 * 512;
    const auto fit = idle_.lower_bound({stream, bytes});
    if (fit != idle_.end() && fit->first.first == stream && fit->first.second <= bytes + bytes / 4) {
      void* data = fit->second;
      idle_.erase(fit);
      in_use_[data] = stream;
      return data;
    }
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, bytes);
    if (code != cudaSuccess) {
      cudaGetLastError();
      fail_out_of_memory(
          str("[Graph] could not allocate ", bytes, " bytes on cuda:", device_, " for the captured operations (",
              cudaGetErrorString(code), "); the graph holds ", held_, " bytes so far"),
          {Device::Type::cuda, int16_t(device_)});
    }
    held_ += bytes;
    all_[data] = bytes;
    in_use_[data] = stream;
    return data;
  }
  /// Memory of the graph itself that is zero before its first replay; one piece for each stream.
  void* zeros(size_t bytes, cudaStream_t stream) {
    void*& mine = zeros_[stream];
    if (mine) return mine;
    void* data = nullptr;
    check("Graph", cudaMalloc(&data, bytes));
    all_[data] = bytes;
    cudaStream_t apart = nullptr;  // on `stream` it would be recorded
    check("Graph", cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    const AtEnd destroyed([&] { cudaStreamDestroy(apart); });
    check("Graph", cudaMemsetAsync(data, 0, bytes, apart));
    check("Graph", cudaStreamSynchronize(apart));
    return mine = data;
  }
  /// Frees a block. During the recording, the block may be reused on the same stream.
  void give_back(void* data) {
    const auto used = in_use_.find(data);
    if (used == in_use_.end()) return;
    if (recording) idle_.emplace(std::pair(used->second, all_.at(data)), data);
    in_use_.erase(used);
  }
  /// Keeps `older`, memory allocated before the recording, alive as long as this arena.
  void keep(std::shared_ptr<void> older) { older_.push_back(std::move(older)); }
  /// True if this arena's graph may read the memory: its recording began after the allocation, when Graph::recordings()
  /// was `born`.
  bool may_read(int device, uint32_t born) const {
    return device == device_ && born < number_ && (recording || has_graph);
  }
  bool has_tensors() const { return !in_use_.empty(); }
  const auto& all() const { return all_; }
  int device() const { return device_; }

  bool recording = true, has_graph = false;

 private:
  int device_;
  const uint32_t number_ = Graph::recordings();
  size_t held_ = 0;
  std::unordered_map<void*, size_t> all_;
  std::unordered_map<void*, cudaStream_t> in_use_;
  std::unordered_map<cudaStream_t, void*> zeros_;
  std::multimap<std::pair<cudaStream_t, size_t>, void*> idle_;
  std::vector<std::shared_ptr<void>> older_;
};

/// Maps each block of memory to its arena. The mutex is needed because any thread may free a tensor at any time.
struct Pieces {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<Arena>> owner;
  std::vector<std::weak_ptr<Arena>> arenas;
  std::atomic<int64_t> count{0};
};
Pieces& pieces() {
  static Pieces& all = *new Pieces;  // leaked: outlives static tensors
  return all;
}

/// Removes the arena from the map if no recording, graph or tensor uses it. The mutex must be held. The caller drops
/// the last reference after unlocking.
void forget_unused(const std::shared_ptr<Arena>& arena) {
  if (arena->recording || arena->has_graph || arena->has_tensors()) return;
  for (const auto& [data, bytes] : arena->all()) pieces().owner.erase(data);
  pieces().count = int64_t(pieces().owner.size());
}

/// A captured graph, which Backend (tensor/backend.h) passes as void*.
struct Captured {
  cudaGraphExec_t graph = nullptr;
  std::shared_ptr<Arena> arena;
};

thread_local std::shared_ptr<Arena> recording;  // this thread's, or null
thread_local cudaStream_t recorded_stream = nullptr;

/// Ends this thread's recording; returns nullptr and the error code on failure.
std::pair<cudaGraph_t, std::shared_ptr<Arena>> stop(cudaError_t& code) {
  cudaGraph_t graph = nullptr;
  code = cudaStreamEndCapture(std::exchange(recorded_stream, nullptr), &graph);
  if (code != cudaSuccess) cudaGetLastError();
  const std::shared_ptr<Arena> arena = std::exchange(recording, nullptr);
  const std::lock_guard lock(pieces().mutex);
  arena->recording = false;
  return {graph, arena};
}

/// The arenas whose graphs may read memory on `device` that was allocated when Graph::recordings() was `born`. Unlocks
/// the mutex before it destroys `others`, because an arena may die with its pointer in `others`.
std::vector<std::shared_ptr<Arena>> arenas_that_read(int device, uint32_t born) {
  std::vector<std::shared_ptr<Arena>> arenas, others;
  const std::lock_guard lock(pieces().mutex);
  for (const auto& known : pieces().arenas)
    if (std::shared_ptr<Arena> arena = known.lock())
      (arena->may_read(device, born) ? arenas : others).push_back(std::move(arena));
  return arenas;
}

}  // namespace

void begin_capture(int device) {
  select_device(device);
  // Releases the memory that the warm-up run left in the pool: the graph allocates its own.
  check("Graph", cudaDeviceSynchronize());
  cudaMemPool_t pool = nullptr;
  check("Graph", cudaDeviceGetDefaultMemPool(&pool, device));
  check("Graph", cudaMemPoolTrimTo(pool, 0));
  recorded_stream = stream_of(device);
  check("Graph", cudaStreamBeginCapture(recorded_stream, cudaStreamCaptureModeRelaxed));
  recording = std::make_shared<Arena>(device);
  const std::lock_guard lock(pieces().mutex);
  std::erase_if(pieces().arenas, [](const auto& arena) { return arena.expired(); });
  pieces().arenas.push_back(recording);
}

bool is_recording() { return bool(recording); }

void abandon_capture(int device) noexcept {
  const OnDevice here(device);
  cudaError_t code;
  const auto [graph, arena] = stop(code);
  if (graph) cudaGraphDestroy(graph);
  const std::lock_guard lock(pieces().mutex);
  forget_unused(arena);
}

void* end_capture(int device) {
  select_device(device);
  cudaError_t code;
  auto [graph, arena] = stop(code);
  auto captured = std::make_unique<Captured>();
  if (code == cudaSuccess) {
    code = cudaGraphInstantiate(&captured->graph, graph, 0);
    cudaGraphDestroy(graph);
  }
  const std::lock_guard lock(pieces().mutex);
  if (code != cudaSuccess) {
    forget_unused(arena);
    fail_cuda("Graph", code);
  }
  arena->has_graph = true;
  captured->arena = std::move(arena);
  return captured.release();
}

void launch_graph(void* graph, int device) {
  select_device(device);
  check("Graph", cudaGraphLaunch(static_cast<Captured*>(graph)->graph, stream_of(device)));
}

void free_graph(void* graph, int device) noexcept {
  const std::unique_ptr<Captured> captured(static_cast<Captured*>(graph));
  const OnDevice here(device);
  cudaDeviceSynchronize();  // a replay may still run
  cudaGraphExecDestroy(captured->graph);
  {
    const std::lock_guard lock(pieces().mutex);
    captured->arena->has_graph = false;
    forget_unused(captured->arena);
  }
  captured->arena.reset();
}

void* allocate_captured(size_t bytes, int device) {
  if (!recording || recording->device() != device) [[likely]]
    return nullptr;
  const std::lock_guard lock(pieces().mutex);
  void* data = recording->allocate(bytes, stream_of(device));
  pieces().owner[data] = recording;
  pieces().count = int64_t(pieces().owner.size());
  return data;
}

void* recorded_zeros(size_t bytes, cudaStream_t stream) {
  if (!recording) [[likely]]
    return nullptr;
  const std::lock_guard lock(pieces().mutex);
  return recording->zeros(bytes, stream);
}

bool deallocate_captured(void* data, int device, void* stream) noexcept {
  if (pieces().count.load(std::memory_order_acquire) == 0 && !recording) [[likely]]
    return false;
  std::shared_ptr<Arena> arena;  // destroyed after unlocking
  const std::lock_guard lock(pieces().mutex);
  const auto found = pieces().owner.find(data);
  if (found != pieces().owner.end()) {
    arena = found->second;
    arena->give_back(data);
    forget_unused(arena);
    return true;
  }
  if (recording) recording->keep(std::make_shared<Kept>(data, device, stream));
  return bool(recording);
}

bool keep_for_graphs(void* data, int device, void* stream, uint32_t born) noexcept {
  const auto arenas = arenas_that_read(device, born);
  if (arenas.empty()) return false;
  const auto kept = std::make_shared<Kept>(data, device, stream);
  const std::lock_guard lock(pieces().mutex);
  for (const auto& arena : arenas) arena->keep(kept);
  return true;
}

void hold_for_graphs(const std::shared_ptr<void>& owner, int device, uint32_t born) noexcept {
  const auto arenas = arenas_that_read(device, born);
  const std::lock_guard lock(pieces().mutex);
  for (const auto& arena : arenas) arena->keep(owner);
}

void free_in_order(void* data, int device, void* stream) noexcept {
  const OnDevice here(device);
  cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
}

}  // namespace lockstep::cuda
