// Recorded work: see graph.h.
#include "tensor/graph.h"

#include <utility>

#include "tensor/backend.h"
#include "tensor/check.h"

namespace lockstep {
namespace {

thread_local bool capturing = false;

/// For the time of a call.
struct Capturing {
  Capturing() { capturing = true; }
  ~Capturing() { capturing = false; }
};

}  // namespace

bool Graph::is_capturing() { return capturing; }

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_),
      handle_(std::exchange(other.handle_, nullptr)),
      body_(std::exchange(other.body_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(body_, other.body_);
  return *this;
}
Graph::~Graph() {
  if (handle_) backend(device_)->free_graph(handle_, device_.index);
}

void Graph::capture(const std::function<void()>& body) {
  LOCKSTEP_CHECK(body, "[Graph] expected a function to capture, got an empty one");
  LOCKSTEP_CHECK(!capturing, "[Graph] expected one capture at a time, got one inside another");
  LOCKSTEP_CHECK(!is_captured(), "[Graph] this graph has captured something already; make another one");
  const Backend* b = backend(device_);
  if (!b) {
    const Capturing scope;
    body();
    body_ = body;
    return;
  }
  body();
  b->begin_capture(device_.index);
  try {
    const Capturing scope;
    body();
  } catch (...) {
    b->abandon_capture(device_.index);
    throw;
  }
  handle_ = b->end_capture(device_.index);
}

void Graph::replay() {
  LOCKSTEP_CHECK(is_captured(), "[Graph] nothing was captured; call capture() first");
  LOCKSTEP_CHECK(!capturing, "[Graph] a graph cannot be replayed inside a capture");
  if (handle_) return backend(device_)->launch_graph(handle_, device_.index);
  const Capturing scope;
  body_();
}

}  // namespace lockstep
