#pragma once
// A ring buffer for bytes in one direction, shared by two threads or processes: one writer, one reader, no locks.
//
// The data pages are mapped twice, back to back, so that any range of up to `capacity` bytes is contiguous in memory,
// even if it passes the end of the ring:
//
//   control page │ data pages (capacity bytes) │ the same pages again
//
// Each end keeps its own position. The writer also caches the reader's position and reloads it when data does not fit.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::dist {

/// State that writer and reader share. All bytes zero means an empty ring, so new pages of a file need no constructor.
struct FifoControl {
  static constexpr size_t bytes = 4096;          ///< size of the control page in front of the data
  alignas(64) std::atomic<uint64_t> written{0};  ///< total bytes written
  alignas(64) std::atomic<uint64_t> read{0};     ///< total bytes consumed
  alignas(64) std::atomic<uint32_t> closed{0};   ///< 1 once the writer has called close()
  std::atomic<uint32_t> abandoned{0};            ///< 1 once the reader no longer reads
};
static_assert(sizeof(FifoControl) <= FifoControl::bytes && std::atomic<uint64_t>::is_always_lock_free);

/// The writing end of a ring.
class FifoWriter {
 public:
  FifoWriter() = default;
  /// `memory`: control page, data and mirror; `capacity`: a power of two.
  FifoWriter(void* memory, size_t capacity)
      : control_(static_cast<FifoControl*>(memory)),
        data_(static_cast<std::byte*>(memory) + FifoControl::bytes),
        capacity_(capacity) {}

  /// Copies as many bytes as fit; returns their number.
  size_t write(const std::byte* from, size_t bytes) {
    if (capacity_ - (written_ - cached_read_) < bytes) cached_read_ = control_->read.load(std::memory_order_acquire);
    const size_t n = std::min(bytes, capacity_ - size_t(written_ - cached_read_));
    if (n == 0) return 0;
    std::memcpy(data_ + (written_ & (capacity_ - 1)), from, n);
    control_->written.store(written_ += n, std::memory_order_release);
    return n;
  }
  void close() { control_->closed.store(1, std::memory_order_release); }  ///< no more bytes will follow
  /// True once the reader has called abandon().
  bool is_abandoned() const { return control_->abandoned.load(std::memory_order_acquire) != 0; }
  explicit operator bool() const { return control_ != nullptr; }  ///< false for a default-constructed writer

 private:
  FifoControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t written_ = 0, cached_read_ = 0;
};

/// The reading end of a ring.
class FifoReader {
 public:
  FifoReader() = default;
  /// `memory` and `capacity` as for FifoWriter.
  FifoReader(void* memory, size_t capacity)
      : control_(static_cast<FifoControl*>(memory)),
        data_(static_cast<const std::byte*>(memory) + FifoControl::bytes),
        capacity_(capacity) {}

  /// All bytes written and not yet consumed, contiguous. Never longer than the ring, even if `written` is corrupt.
  std::span<const std::byte> readable() const {
    const uint64_t written = control_->written.load(std::memory_order_acquire);
    return {data_ + (read_ & (capacity_ - 1)), std::min(size_t(written - read_), capacity_)};
  }
  /// Removes the first `bytes` bytes of readable(), so that the writer can reuse their space.
  void consume(size_t bytes) { control_->read.store(read_ += bytes, std::memory_order_release); }
  /// True once the writer has called close(); some of its bytes may still be unread.
  bool is_closed() const { return control_->closed.load(std::memory_order_acquire) != 0; }
  /// Tells the writer that nobody reads any more.
  void abandon() { control_->abandoned.store(1, std::memory_order_release); }
  explicit operator bool() const { return control_ != nullptr; }  ///< false for a default-constructed reader

 private:
  FifoControl* control_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t read_ = 0;
};

}  // namespace lockstep::dist
