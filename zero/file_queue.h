#pragma once
// Reads and writes of files that go on while others compute. A transfer of any size is cut into requests of block_size
// bytes; threads keep queue_depth of them on their way, by io_uring, or by pread and pwrite in as many threads (64 at
// most) where the system has no io_uring (or forbids it).
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "zero/offload.h"
#include "zero/swap_file.h"

namespace lockstep::zero {

class FileQueue {
 public:
  explicit FileQueue(const AioOptions& options);
  /// Waits for what is on its way.
  ~FileQueue();
  FileQueue(const FileQueue&) = delete;

  /// A read or write that was started; copies stand for the same one.
  class Transfer {
   public:
    /// Returns when it is done: the bytes are in memory, or handed to the disk. Error with file, offset, what was
    /// expected and what came.
    void wait();
    explicit operator bool() const { return state_ != nullptr; }

   private:
    friend class FileQueue;
    struct State;
    std::shared_ptr<State> state_;
  };
  /// Memory, offset and size are multiples of file_block, and the memory must be left alone until wait() returns.
  Transfer read(const SwapFile& file, int64_t offset, std::byte* to, int64_t bytes) {
    return start(file, offset, to, bytes, false);
  }
  Transfer write(const SwapFile& file, int64_t offset, const std::byte* from, int64_t bytes) {
    return start(file, offset, const_cast<std::byte*>(from), bytes, true);
  }

  /// "io_uring" or "threads".
  const char* engine() const { return rings_.empty() ? "threads" : "io_uring"; }

 private:
  struct Request;
  struct Ring;
  Transfer start(const SwapFile& file, int64_t offset, std::byte* data, int64_t bytes, bool writes);
  void finish(Request request, int64_t result);
  void run_thread();
  void run_ring(Ring& ring);
  void end();

  const AioOptions options_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Request> waiting_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::thread> threads_;
};

/// Memory that a file is read into, or written from.
struct FileBuffer {
  FileBuffer() = default;
  ~FileBuffer();  ///< what is on its way still uses the memory
  FileBuffer(const FileBuffer&) = delete;
  void wait();

  Tensor bytes;
  std::vector<FileQueue::Transfer> transfers;
};

/// The n-th request from now gives this errno, or ends short when it is 0. For tests of disks that fail.
void fail_request_after(int64_t n, int error);

}  // namespace lockstep::zero
