// Windows of the fake NCCL: symmetric memory that all ranks of a communicator register. All ranks register memory of
// ncclMemAlloc with the same size. A collective must use a window at the same offsets on all ranks, or on none
// (nccl.cpp). A window must be closed when no collective uses it, and before its communicator and memory are freed.
#include <map>
#include <mutex>
#include <vector>

#include "tests/cudasim/nccl_comm.h"
#include "tests/cudasim/runtime.h"

namespace fake {
namespace {

SpinLock windows_lock;
struct Windows {
  std::map<const char*, size_t> memory;    // allocations of ncclMemAlloc
  std::vector<ncclWindow_vidmem*> opened;  // never freed
};
Windows& windows() {
  static auto& all = *new Windows;
  return all;
}

}  // namespace

std::atomic<int64_t> window_calls{0};

ncclWindow_vidmem* window_of(const ncclComm* c, const void* p) {
  const std::lock_guard lock(windows_lock);
  const auto* at = static_cast<const char*>(p);
  for (ncclWindow_vidmem* w : windows().opened)
    if (w->open && w->comm == c && at >= w->data && at < w->data + w->bytes) return w;
  return nullptr;
}

bool has_open_window(const ncclComm* c, bool closes) {
  const std::lock_guard lock(windows_lock);
  bool any = false;
  for (ncclWindow_vidmem* w : windows().opened) {
    any |= w->comm == c && w->open;
    if (w->comm == c && closes) w->open = false;
  }
  return any;
}

NcclWindows nccl_windows() {
  NcclWindows found{.collectives = window_calls};
  const std::lock_guard lock(windows_lock);
  found.made = int64_t(windows().opened.size());
  for (const ncclWindow_vidmem* w : windows().opened) found.open += w->open;
  found.allocations = int64_t(windows().memory.size());
  return found;
}

}  // namespace fake

using namespace fake;

extern "C" {

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  bytes = (bytes + 4095) / 4096 * 4096;
  if (capturing) return refuse(ncclInvalidUsage, "memory cannot be made while the thread captures");
  if (cudaMalloc(data, bytes) != cudaSuccess) return refuse(ncclUnhandledCudaError, "no memory is left");
  const std::lock_guard lock(windows_lock);
  windows().memory[static_cast<char*>(*data)] = bytes;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
  {
    const std::lock_guard lock(windows_lock);
    for (const ncclWindow_vidmem* w : windows().opened)
      if (w->open && w->data == data) {
        w->comm->world->fail("memory is freed while registered as a window");
        return refuse(ncclInvalidUsage, "memory is freed while registered as a window");
      }
    if (windows().memory.erase(static_cast<char*>(data)) == 0)
      return refuse(ncclInvalidArgument, "expected memory of ncclMemAlloc");
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
// Completes when all ranks have called it, if the sizes agree.
ncclResult_t ncclCommWindowRegister(ncclComm_t c, void* data, size_t bytes, ncclWindow_t* window, int flags) {
  *window = nullptr;
  if (!c || !is_there(c)) return refuse(ncclInvalidArgument, "the communicator does not exist");
  if (capturing) return refuse(ncclInvalidUsage, "a window cannot be made while the thread captures");
  if (flags != NCCL_WIN_COLL_SYMMETRIC || bytes == 0 || bytes % 4096 != 0)
    return refuse(ncclInvalidArgument, "expected a symmetric window of whole pages");
  {
    const std::lock_guard lock(windows_lock);
    const auto found = windows().memory.find(static_cast<char*>(data));
    if (found == windows().memory.end() || found->second < bytes)
      return refuse(ncclInvalidArgument, "expected memory of ncclMemAlloc");
  }
  return call_of_all(c, [=] {
    const uint64_t number = ++c->windows;
    RankState& own = c->world->rank(c->rank);
    own.window_bytes[number % 2] = bytes;
    own.windows = number;
    c->begin = [=] {
      if (is_over(c)) return true;
      if (!holds_for_all(c, [&](const RankState& rank) { return rank.windows >= number; })) return false;
      for (int r = 0; r < c->size; ++r)
        if (const uint64_t theirs = c->world->rank(r).window_bytes[number % 2]; theirs != bytes)
          c->world->fail("window " + std::to_string(number) + " is of " + std::to_string(bytes) + " bytes on rank " +
                         std::to_string(c->rank) + ", of " + std::to_string(theirs) + " on rank " + std::to_string(r));
      if (is_over(c)) return true;
      const std::lock_guard lock(windows_lock);
      windows().opened.push_back(*window = new ncclWindow_vidmem{c, static_cast<char*>(data), bytes, number});
      return true;
    };
  });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window) {
  const std::lock_guard lock(windows_lock);
  if (!c || !window || window->comm != c || !window->open || !c->world)
    return refuse(ncclInvalidArgument, "expected an open window of the communicator");
  if (window->uses > 0 && !is_over(c)) {
    c->world->fail("a window is closed while " + std::to_string(window->uses) + " collectives use it");
    return refuse(ncclInvalidUsage, "the window is in use");
  }
  window->open = false;
  return ncclSuccess;
}

}  // extern "C"
