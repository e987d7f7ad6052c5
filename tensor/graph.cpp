// Graphs: recorded work. See graph.h.
//
// Random numbers. A recorded kernel reads its key from a table in device memory. This example begins to record at call
// c of the random generator and replays the graph at call d:
//
//   recording   draws at calls c, c+1, c+1 again (second forward of a checkpoint), c+3    table: c+0, c+1, c+3
//   replay      a kernel writes the keys of calls d+0, d+1, d+3 (its arguments) to the table
//               ─▶  recorded work  ─▶  generator at call d+4
//
// So each number has the same key as without a graph, even if the generator is seeded or set between replays. If the
// recorded work goes on to other micro-batches, the draws of the k-th after the first are stored as (k, call); calls
// count from 0 in each of these micro-batches.
#include "tensor/graph.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tensor/stream.h"

namespace lockstep {

struct Graph::Random {
  explicit Random(Device device) : apart(device) {}
  const RandomState start = random_state();
  struct Draw {
    uint64_t micro_batch, call;  // relative to `start`, but `call` only in the micro-batch of `start`
    auto operator<=>(const Draw&) const = default;
  };
  std::map<Draw, size_t> place;
  std::vector<Draw> draws;  // inverse of `place`
  // The keys are written before a replay and read during it, so no other tensor of the graph may use their memory.
  // Memory of a separate stream is never reused by the graph.
  Stream apart;
  std::vector<Tensor> tables;  // keys_at_once keys each
  Draw end{};                  // state in which a replay leaves the generator

  bool is_of(const RandomState& now) const {
    return now.seed == start.seed && now.step == start.step &&
           (now.micro_batch != start.micro_batch || now.call >= start.call);
  }
  Draw counted(const RandomState& now) const {
    const uint64_t micro_batch = now.micro_batch - start.micro_batch;
    return {micro_batch, now.call - (micro_batch == 0 ? start.call : 0)};
  }
  static RandomState from(const RandomState& now, const Draw& draw) {
    return {now.seed, now.step, now.micro_batch + draw.micro_batch, draw.call + (draw.micro_batch == 0 ? now.call : 0)};
  }
  const RecordedKey* key(const Draw& draw, Device device) {
    const auto [found, is_new] = place.try_emplace(draw, draws.size());
    if (is_new) {
      if (draws.size() % keys_at_once == 0) {
        const StreamScope scope(apart);
        tables.push_back(empty({int64_t(sizeof(RecordedKey) / 8) * keys_at_once}, {.dtype = i64, .device = device}));
      }
      draws.push_back(draw);
    }
    return table(found->second / keys_at_once) + found->second % keys_at_once;
  }
  RecordedKey* table(size_t i) const { return static_cast<RecordedKey*>(tables[i].raw_data()); }
};

namespace {

struct Capture {
  Device device;
  Graph::Random* random;  // null on the CPU
};
thread_local Capture* current = nullptr;
std::atomic<uint32_t> begun{0};

/// Marks this thread as capturing: `current` points to the capture while this object exists.
struct Capturing {
  Capturing(Device device, Graph::Random* random) : capture{device, random} { current = &capture; }
  ~Capturing() { current = nullptr; }
  Capture capture;
};

}  // namespace

bool Graph::is_capturing() { return current; }
bool Graph::is_recording() { return current && current->random; }
void Graph::check_recording(Device device) {
  if (!is_recording() || device == current->device) [[likely]]
    return;
  fail(device.is_cpu()
           ? "[Graph] CPU operations are not replayed: move all tensors to the graph's device before the capture"
           : str("[Graph] expected work on ", current->device, ", whose graph this thread records, got some on ",
                 device, ": record a graph for each device"));
}
uint32_t Graph::recordings() { return begun.load(std::memory_order_acquire); }

std::optional<PhiloxKey> recorded_random_key(Device device, const RandomState& now) {
  if (!Graph::is_recording()) [[likely]]
    return {};
  LOCKSTEP_CHECK(device == current->device, "[Graph] random numbers that are drawn on ", device,
                 " would be the same in every replay of a graph of ", current->device,
                 "; draw them before the capture");
  Graph::Random& random = *current->random;
  LOCKSTEP_CHECK(
      random.is_of(now),
      "[Graph] the captured function seeds the random generator or moves it to another step; do that before replay()");
  return PhiloxKey{0, 0, random.key(random.counted(now), device)};
}

Graph::Graph(Device device) : device_(device) { check_device("Graph", device); }
Graph::Graph(Graph&& other) noexcept
    : device_(other.device_),
      handle_(std::exchange(other.handle_, nullptr)),
      body_(std::exchange(other.body_, nullptr)),
      random_(std::move(other.random_)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(body_, other.body_);
  std::swap(random_, other.random_);
  return *this;
}
Graph::~Graph() {
  if (handle_) backend(device_)->free_graph(handle_, device_.index);
}

void Graph::capture(const std::function<void()>& body) {
  LOCKSTEP_CHECK(body, "[Graph] expected a function to capture, got an empty one");
  LOCKSTEP_CHECK(!current, "[Graph] expected one capture at a time, got one inside another; capture them in turn");
  LOCKSTEP_CHECK(!is_captured(), "[Graph] this graph already holds a recording; create a new Graph");
  if (device_.is_cpu()) {
    const Capturing scope(device_, nullptr);
    body();
  } else {
    body();
  }
  record(body);
}

void Graph::record(const std::function<void()>& body) {
  LOCKSTEP_CHECK(body, "[Graph] expected a function to record, got an empty one");
  LOCKSTEP_CHECK(!current, "[Graph] expected one capture at a time, got one inside another; capture them in turn");
  LOCKSTEP_CHECK(!is_captured(), "[Graph] this graph already holds a recording; create a new Graph");
  const Backend* b = backend(device_);
  if (!b) {
    body_ = body;
    return;
  }
  auto random = std::make_unique<Random>(device_);
  const RandomScope restored_after;
  begun.fetch_add(1, std::memory_order_acq_rel);
  b->begin_capture(device_.index);
  try {
    const Capturing scope(device_, random.get());
    body();
    const RandomState end = random_state();
    LOCKSTEP_CHECK(random->is_of(end),
                   "[Graph] the captured function seeds the random generator or moves it to another step; do that "
                   "before replay()");
    random->end = random->counted(end);
  } catch (...) {
    b->abandon_capture(device_.index);
    throw;
  }
  handle_ = b->end_capture(device_.index);
  random_ = std::move(random);
}

void Graph::replay() {
  LOCKSTEP_CHECK(is_captured(), "[Graph] nothing was captured; call capture() first");
  LOCKSTEP_CHECK(!current,
                 "[Graph] a graph cannot be replayed inside a capture; call replay() before or after capture()");
  if (!handle_) {
    const Capturing scope(device_, nullptr);
    return body_();
  }
  const Backend& b = *backend(device_);
  const RandomState now = random_state();
  std::vector<RecordedKey> keys;
  for (const Random::Draw& draw : random_->draws) {
    const PhiloxKey key = key_of_call(Random::from(now, draw));
    keys.push_back({key.seed, key.stream});
  }
  for (size_t i = 0; i < random_->tables.size(); ++i) {
    const size_t first = i * keys_at_once;
    b.set_keys(random_->table(i), &keys[first], int(std::min<size_t>(keys_at_once, keys.size() - first)),
               device_.index);
  }
  b.launch_graph(handle_, device_.index);
  set_random_state(Random::from(now, random_->end));
}

}  // namespace lockstep
