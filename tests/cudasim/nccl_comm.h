#pragma once
// Shared by the parts of the fake NCCL.
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cudasim/nccl_world.h"

/// A communicator. Never freed, because work on a stream may still refer to it.
struct ncclComm {
  std::shared_ptr<fake::World> world;
  int rank = 0, size = 0, device = 0;
  std::atomic<uint64_t> done{0};  // collectives completed
  std::atomic<bool> is_inside{false};
  std::atomic<uint64_t> recorded{0};
  std::atomic<int> in_graphs{0};  // recorded calls whose graphs still exist
  uint64_t sent[fake::max_ranks] = {}, received[fake::max_ranks] = {};
  std::atomic<bool> aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::string id;
  std::function<bool()> begin;    // returns true once all ranks have joined; then reset
  std::function<void()> pending;  // calls to be put on the stream after some queries
  int asked = 0;                  // queries since then
  uint64_t begun = 0;
  uint64_t windows = 0;  // registered so far
  // Messages live as long as the communicator. ThreadSanitizer does not see a shared pointer count in these files, and
  // would take the end of one that a stream shares for a race.
  std::vector<std::shared_ptr<void>> kept;
};

/// A window.
struct ncclWindow_vidmem {
  ncclComm* comm;
  const char* data;
  size_t bytes;
  uint64_t number;
  std::atomic<int> uses{0};  // pending collectives, and those recorded in graphs
  bool open = true;
};

namespace fake {

/// The text of ncclGetLastError(); refuse() sets it.
inline thread_local std::string last_error;
inline ncclResult_t refuse(ncclResult_t code, const std::string& why) { return last_error = why, code; }
/// True if the communicator was aborted or has failed.
inline bool is_over(const ncclComm* c) {
  return c->aborted || c->error != ncclSuccess || c->world->header().failed == 2;
}
/// True once all ranks have joined.
inline bool is_there(ncclComm* c) {
  if (!c->begin) return true;
  const std::function<bool()> begin = c->begin;  // another thread may reset it
  if (!begin()) return false;
  c->begin = nullptr;
  return true;
}
/// True if the communicator is over, or if this holds for all its ranks.
template <class Fn> bool holds_for_all(const ncclComm* c, Fn holds) {
  for (int r = 0; r < c->size && !is_over(c); ++r)
    if (!holds(c->world->rank(r))) return false;
  return true;
}
/// Runs fn now, or at the end of the group.
ncclResult_t call_of_all(ncclComm* c, std::function<void()> fn);

// --- nccl_windows.cpp ---

/// Collectives that used a window.
extern std::atomic<int64_t> window_calls;
/// The open window of this communicator that contains p, or nullptr.
ncclWindow_vidmem* window_of(const ncclComm* c, const void* p);
/// True if the communicator has open windows; `closes` closes them.
bool has_open_window(const ncclComm* c, bool closes = false);

}  // namespace fake
