#pragma once
// Asynchronous reads and writes of files. A transfer of any size is split into requests of block_size bytes. Each of
// thread_count worker threads keeps queue_depth requests in flight by io_uring. If io_uring is missing or forbidden,
// thread_count * queue_depth threads (at most 64) call pread and pwrite.
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "zero/offload/options.h"
#include "zero/offload/swap_file.h"

namespace lockstep::zero {

/// A queue of transfers with its own worker threads.
class FileQueue {
 public:
  /// Error if Engine::uring is asked for and io_uring is unavailable, or if threads cannot be started.
  explicit FileQueue(const AioOptions& options);
  /// Waits for all transfers.
  ~FileQueue();
  FileQueue(const FileQueue&) = delete;

  /// A read or write that was started. Copies refer to the same transfer.
  class Transfer {
   public:
    /// Blocks until the transfer is done: the bytes are in memory, or handed to the disk. If it failed, the Error names
    /// the file, the offset, and the bytes expected and transferred.
    void wait();
    explicit operator bool() const { return state_ != nullptr; }  ///< false if default-constructed, or after wait()

   private:
    friend class FileQueue;
    struct State;
    std::shared_ptr<State> state_;
  };
  /// Starts a read. Error unless the memory address, offset and size are multiples of file_block, and the bytes lie
  /// inside the file. The memory must stay untouched until wait() returns.
  Transfer read(const SwapFile& file, int64_t offset, std::byte* to, int64_t bytes) {
    return start(file, offset, to, bytes, false);
  }
  /// Starts a write, under the same conditions as read().
  Transfer write(const SwapFile& file, int64_t offset, const std::byte* from, int64_t bytes) {
    return start(file, offset, const_cast<std::byte*>(from), bytes, true);
  }

  /// The engine in use: "io_uring" or "threads".
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

/// Memory for a file's contents, and the transfers that use it.
struct FileBuffer {
  FileBuffer() = default;
  ~FileBuffer();  ///< waits, because transfers in flight use the memory
  FileBuffer(const FileBuffer&) = delete;
  void wait();  ///< blocks until all transfers are done

  Tensor bytes;
  std::vector<FileQueue::Transfer> transfers;
};

/// For tests of failing disks: makes the n-th request from now fail with the errno `error`; 0: it transfers no bytes.
void fail_request_after(int64_t n, int error);

}  // namespace lockstep::zero
