// window.cpp: allocates, registers and frees symmetric windows of NCCL. See window.h.
#include "dist/nccl/window.h"

#include <algorithm>

#include "base/environment.h"
#include "dist/nccl/engine.h"
#include "tensor/backend.h"

namespace lockstep::dist {
namespace {

constexpr int64_t page = 4096;  // NCCL registers whole pages

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
constexpr bool are_known = true;
ncclResult_t open_window(ncclComm_t comm, void* data, size_t bytes, void** handle) {
  return ncclCommWindowRegister(comm, data, bytes, reinterpret_cast<ncclWindow_t*>(handle), NCCL_WIN_COLL_SYMMETRIC);
}
void close_window(ncclComm_t comm, void* handle) { ncclCommWindowDeregister(comm, static_cast<ncclWindow_t>(handle)); }
#else
constexpr bool are_known = false;
ncclResult_t open_window(ncclComm_t, void*, size_t, void**) { return ncclInvalidUsage; }
void close_window(ncclComm_t, void*) {}
#endif

}  // namespace

bool has_windows() {
  const bool wanted = environment("LOCKSTEP_NCCL_WINDOWS").value_or("1") != "0";
  int version = 0;
  return are_known && wanted && ncclGetVersion(&version) == ncclSuccess && version >= NCCL_VERSION(2, 27, 0);
}

void Communicator::close_windows() {
  for (void* const window : windows_) close_window(comm_, window);
  windows_.clear();
}

void Communicator::free_discarded() {
  std::vector<std::pair<void*, void*>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(discarded_);
  }
  if (all.empty()) return;
  try {
    backend(device_)->select(device_.index);
  } catch (const Error&) { return; }  // the device has failed, and its memory goes with the process
  cudaDeviceSynchronize();            // not under the mutex, which the watchdog may need
  const std::lock_guard lock(mutex_);
  for (const auto& [data, window] : all) {
    if (std::erase(windows_, window) > 0) close_window(comm_, window);
    ncclMemFree(data);
  }
}

Window::Window(std::shared_ptr<Communicator> comm, int64_t bytes)
    : comm_(std::move(comm)), bytes_(size_t((bytes + page - 1) / page * page)) {
  backend(comm_->device())->select(comm_->device().index);
  check_nccl(ncclMemAlloc(&data_, bytes_), "ncclMemAlloc", nullptr);
}

Window::~Window() {
  const std::lock_guard lock(comm_->mutex());
  if (comm_->handle()) comm_->forget(data_, handle_);
  else ncclMemFree(data_);
}

void Window::open() {
  check_nccl(open_window(comm_->handle(), data_, bytes_, &handle_),
             "ncclCommWindowRegister (LOCKSTEP_NCCL_WINDOWS=0 turns windows off)", comm_->handle());
}

void Window::keep() {
  const std::lock_guard lock(comm_->mutex());
  if (handle_ && comm_->handle()) comm_->keep(handle_);
}

bool NcclEngine::is_connected() const {
  const std::lock_guard lock(mutex_);
  return links_.contains(everybody);
}

Tensor NcclEngine::window(const Shape& shape, DType dtype) {
  const int64_t bytes = numel_of(shape) * size_of(dtype);
  std::shared_ptr<Window> made;
  call_queue.aside([&] {
    const std::shared_ptr<Communicator> comm = links_.at(everybody).comm;
    comm->free_discarded();
    made = std::make_shared<Window>(comm, bytes);
    watchdog_->run({comm.get()}, call_queue.timeout_of({}), str("a window of ", bytes, " bytes"),
                   [&] { made->open(); });
    made->keep();
  });
  return Tensor(Storage::adopt(made->data(), bytes, *device_, [made] {}), 0, shape, contiguous_strides(shape), dtype);
}

}  // namespace lockstep::dist
