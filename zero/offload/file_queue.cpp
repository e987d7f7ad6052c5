// FileQueue: transfers files by io_uring, or by threads that call pread and pwrite. See file_queue.h.
#include "zero/offload/file_queue.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "zero/waits.h"
#if defined(LOCKSTEP_WITH_URING)
#include <liburing.h>
#endif

namespace lockstep::zero {
namespace {

std::atomic<int64_t> requests_until_failure{0};
std::atomic<int> failure{0};

}  // namespace

void fail_request_after(int64_t n, int error) {
  failure = error;
  requests_until_failure = n;
}

struct FileQueue::Transfer::State {
  FileQueue& queue;
  const SwapFile& file;
  bool writes;
  int64_t left = 0;   // requests in flight; guarded by the queue's mutex, as is `error`
  std::string error;  // error text of the first request that failed
};

/// A piece of a transfer, of which `done` bytes are transferred so far. It is queued again as long as bytes are left.
struct FileQueue::Request {
  std::shared_ptr<Transfer::State> of;
  int64_t offset = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t done = 0;
};

struct FileQueue::Ring {
#if defined(LOCKSTEP_WITH_URING)
  io_uring ring{};
  std::vector<Request> slots;  // requests in flight; a free slot has no transfer
  ~Ring() {
    if (!slots.empty()) io_uring_queue_exit(&ring);
  }
#endif
};

FileQueue::FileQueue(const AioOptions& o) : options_(o) {
  check(o);
  std::string why = "this build has none (liburing)";
#if defined(LOCKSTEP_WITH_URING)
  for (int i = 0; i < o.thread_count && o.engine != AioOptions::Engine::threads; ++i) {
    auto ring = std::make_unique<Ring>();
    const int error = -io_uring_queue_init(unsigned(o.queue_depth), &ring->ring, 0);
    if (error != 0) {
      why = std::strerror(error);
      rings_.clear();
      break;
    }
    ring->slots.resize(size_t(o.queue_depth));
    rings_.push_back(std::move(ring));
  }
#endif
  LOCKSTEP_CHECK(o.engine != AioOptions::Engine::uring || !rings_.empty(), "[aio] expected io_uring, got: ", why,
                 "; set engine to automatic or threads");
  try {
    for (auto& ring : rings_) threads_.emplace_back([this, &ring] { run_ring(*ring); });
    if (rings_.empty())
      for (int i = 0; i < std::min(64, o.thread_count * o.queue_depth); ++i)
        threads_.emplace_back([this] { run_thread(); });
  } catch (const std::system_error& error) {
    end();
    fail(str("[aio] expected to start a thread, got: ", error.what(), "; make thread_count or queue_depth smaller"));
  }
}

FileQueue::~FileQueue() { end(); }

void FileQueue::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

FileQueue::Transfer FileQueue::start(const SwapFile& file, int64_t offset, std::byte* data, int64_t bytes,
                                     bool writes) {
  LOCKSTEP_CHECK(offset % file_block == 0 && bytes % file_block == 0 &&
                     reinterpret_cast<uintptr_t>(data) % size_t(file_block) == 0 && offset + bytes <= file.bytes(),
                 "[aio] expected size, offset and memory address in multiples of ", file_block, " inside the file's ",
                 file.bytes(), " bytes, got ", bytes, " bytes at offset ", offset, " and memory ", data);
  Transfer transfer;
  transfer.state_ = std::make_shared<Transfer::State>(Transfer::State{.queue = *this, .file = file, .writes = writes});
  {
    const std::lock_guard lock(mutex_);
    for (int64_t at = 0; at < bytes; at += options_.block_size, ++transfer.state_->left) {
      waiting_.push_back({transfer.state_, offset + at, data + at, std::min(options_.block_size, bytes - at)});
    }
  }
  work_.notify_all();
  return transfer;
}

void FileQueue::Transfer::wait() {
  if (!state_) return;
  const std::shared_ptr<State> s = std::exchange(state_, nullptr);
  std::unique_lock lock(s->queue.mutex_);
  if (s->left > 0) {
    const Waiting waiting(s->writes ? &Waited::write : &Waited::read);
    s->queue.done_.wait(lock, [&] { return s->left == 0; });
  }
  if (!s->error.empty()) fail(s->error);
}

void FileBuffer::wait() {
  for (FileQueue::Transfer& transfer : transfers) transfer.wait();
  transfers.clear();
}

FileBuffer::~FileBuffer() {
  for (FileQueue::Transfer& transfer : transfers) {
    try {
      transfer.wait();
    } catch (...) {}  // NOLINT: another error is in flight, or the bytes are no longer needed
  }
}

/// Ends a request, or queues it again if bytes are left. result: number of bytes transferred, or a negative errno.
void FileQueue::finish(Request request, int64_t result) {
  if (requests_until_failure.load(std::memory_order_relaxed) > 0 && requests_until_failure.fetch_sub(1) == 1)
    result = -failure.load();
  const std::lock_guard lock(mutex_);
  Transfer::State& transfer = *request.of;
  if (result > 0) request.done += result;
  const bool again = result == -EINTR || result == -EAGAIN ||
                     (result > 0 && request.done < request.bytes && request.done % file_block == 0);
  if (again) {
    waiting_.push_front(std::move(request));
    work_.notify_one();
    return;
  }
  if (request.done < request.bytes && transfer.error.empty()) {
    const std::string got =
        result < 0 ? std::strerror(int(-result))
                   : str(request.done, transfer.writes ? " written" : ": the file is shorter than it was made");
    transfer.error = str("[offload] ", transfer.file.what(), ", offset ", request.offset, ": expected to ",
                         transfer.writes ? "write " : "read ", request.bytes, " bytes, got ", got,
                         "; check the disk's health and free space, and that nobody changes the file");
  }
  if (--transfer.left == 0) done_.notify_all();
}

void FileQueue::run_thread() {
  for (;;) {
    Request r;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      r = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const int fd = r.of->file.descriptor();
    const auto size = size_t(r.bytes - r.done);
    const ssize_t n = r.of->writes ? pwrite(fd, r.data + r.done, size, r.offset + r.done)
                                   : pread(fd, r.data + r.done, size, r.offset + r.done);
    finish(std::move(r), n < 0 ? -errno : n);
  }
}

#if defined(LOCKSTEP_WITH_URING)
void FileQueue::run_ring(Ring& ring) {
  size_t on_their_way = 0;
  for (;;) {
    std::vector<size_t> fresh;
    {
      std::unique_lock lock(mutex_);
      if (on_their_way == 0) work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (on_their_way == 0 && waiting_.empty()) return;
      for (size_t k = 0;
           k < ring.slots.size() && !waiting_.empty() && (options_.overlap_events || on_their_way == fresh.size());
           ++k) {
        if (ring.slots[k].of) continue;
        ring.slots[k] = std::move(waiting_.front());
        waiting_.pop_front();
        fresh.push_back(k);
        ++on_their_way;
      }
    }
    size_t prepared = 0, submitted = 0;
    int broken = 0;
    const auto submit = [&] {
      while (submitted < prepared && broken == 0) {
        const int n = io_uring_submit(&ring.ring);
        if (n > 0) submitted += size_t(n);
        else if (n != -EINTR && n != -EAGAIN && n != -EBUSY) broken = n == 0 ? -EIO : n;
      }
    };
    for (const size_t k : fresh) {
      const Request& r = ring.slots[k];
      io_uring_sqe* const entry = io_uring_get_sqe(&ring.ring);  // never null: the ring has as many entries as slots
      const int fd = r.of->file.descriptor();
      if (r.of->writes)
        io_uring_prep_write(entry, fd, r.data + r.done, unsigned(r.bytes - r.done), uint64_t(r.offset + r.done));
      else io_uring_prep_read(entry, fd, r.data + r.done, unsigned(r.bytes - r.done), uint64_t(r.offset + r.done));
      io_uring_sqe_set_data64(entry, k);
      ++prepared;
      if (options_.single_submit) submit();
    }
    submit();
    for (size_t i = submitted; broken != 0 && i < fresh.size(); ++i, --on_their_way)
      finish(std::exchange(ring.slots[fresh[i]], {}), broken);
    if (broken != 0 && on_their_way == 0) return run_thread();  // the ring is broken: go on with pread and pwrite
    if (on_their_way == 0) continue;
    io_uring_cqe* event = nullptr;
    if (io_uring_wait_cqe(&ring.ring, &event) != 0) continue;  // a signal interrupted the wait
    do {
      const size_t k = io_uring_cqe_get_data64(event);
      const int result = event->res;
      io_uring_cqe_seen(&ring.ring, event);
      --on_their_way;
      finish(std::exchange(ring.slots[k], {}), result);
    } while (io_uring_peek_cqe(&ring.ring, &event) == 0);
  }
}
#else
void FileQueue::run_ring(Ring&) {}
#endif

}  // namespace lockstep::zero
