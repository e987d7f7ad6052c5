#pragma once
// What the parts of the fake NCCL share.
#include <nccl.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/cudasim/nccl_world.h"

// Never freed: what is on a stream may still look at it.
struct ncclComm {
  std::shared_ptr<fake::World> world;
  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  uint64_t splits = 0;
  std::atomic<uint64_t> done{0};  // collectives
  std::atomic<bool> is_inside{false};
  std::atomic<uint64_t> recorded{0};
  std::atomic<int> in_graphs{0};  // calls, of which graphs are left
  uint64_t sent[fake::most_ranks] = {}, received[fake::most_ranks] = {};
  std::atomic<bool> aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::string id;
  std::function<bool()> begin;    // true when the communicator is there
  std::function<void()> pending;  // will be put on its stream
  int asked = 0;                  // since then
  uint64_t begun = 0;
  uint64_t windows = 0;  // registered so far
};

struct ncclWindow_vidmem {
  ncclComm* comm;
  const char* data;
  size_t bytes;
  uint64_t number;
  std::atomic<int> uses{0};  // collectives that are not done, and those of graphs
  bool open = true;
};

namespace fake {

inline thread_local std::string last_error;
inline ncclResult_t refuse(ncclResult_t code, const std::string& why) { return last_error = why, code; }
inline bool is_over(const ncclComm* c) {
  return c->aborted || c->error != ncclSuccess || c->world->header().failed == 2;
}
/// Whether all ranks have come.
inline bool is_there(ncclComm* c) {
  if (!c->begin) return true;
  const std::function<bool()> begin = c->begin;  // it may be replaced while it runs
  if (!begin()) return false;
  c->begin = nullptr;
  return true;
}
/// Now, or at the end of the group.
ncclResult_t call_of_all(ncclComm* c, std::function<void()> fn);

// nccl_windows.cpp
extern std::atomic<int64_t> window_calls;
/// The open one of this communicator in which the memory lies.
ncclWindow_vidmem* window_of(const ncclComm* c, const void* p);
bool has_open_window(const ncclComm* c, bool closes = false);

}  // namespace fake
