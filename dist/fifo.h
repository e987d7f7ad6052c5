#pragma once
// Bytes of one direction in a ring buffer that two threads or processes share: one writer, one reader, no locks.
//
// The data is mapped twice, back to back, so that whatever lies in the ring is contiguous at some address:
//
//   control page │ data 0 .. capacity │ the same pages again │        [base + at & mask, + bytes) never wraps
//
// Each end keeps its own position; the writer also keeps what it last saw of the reader's, and looks again when nothing
// fits.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::dist {

/// What the two ends share. All zero is an empty ring, so fresh pages of a file need no construction.
struct FifoControl {
  static constexpr size_t bytes = 4096;          ///< of the control page, in front of the data
  alignas(64) std::atomic<uint64_t> written{0};  ///< bytes ever written
  alignas(64) std::atomic<uint64_t> read{0};     ///< bytes ever consumed
  alignas(64) std::atomic<uint32_t> closed{0};   ///< the writer is done
  std::atomic<uint32_t> abandoned{0};            ///< the reader is gone
};
static_assert(sizeof(FifoControl) <= FifoControl::bytes && std::atomic<uint64_t>::is_always_lock_free);

class FifoWriter {
 public:
  FifoWriter() = default;
  /// memory: control page, data and mirror; capacity: a power of two.
  FifoWriter(void* memory, size_t capacity)
      : control_(static_cast<FifoControl*>(memory)),
        data_(static_cast<std::byte*>(memory) + FifoControl::bytes),
        capacity_(capacity) {}

  /// Copies as many bytes as fit; gives back how many.
  size_t write(const std::byte* from, size_t bytes) {
    if (capacity_ - (written_ - read_seen_) < bytes) read_seen_ = control_->read.load(std::memory_order_acquire);
    const size_t n = std::min(bytes, capacity_ - size_t(written_ - read_seen_));
    if (n == 0) return 0;
    std::memcpy(data_ + (written_ & (capacity_ - 1)), from, n);
    control_->written.store(written_ += n, std::memory_order_release);
    return n;
  }
  void close() { control_->closed.store(1, std::memory_order_release); }
  bool is_abandoned() const { return control_->abandoned.load(std::memory_order_acquire) != 0; }
  explicit operator bool() const { return control_ != nullptr; }

 private:
  FifoControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t written_ = 0, read_seen_ = 0;
};

class FifoReader {
 public:
  FifoReader() = default;
  FifoReader(void* memory, size_t capacity)
      : control_(static_cast<FifoControl*>(memory)),
        data_(static_cast<const std::byte*>(memory) + FifoControl::bytes),
        capacity_(capacity) {}

  /// Everything that has been written and not consumed, in one piece; never longer than the ring, whatever the writer
  /// does.
  std::span<const std::byte> readable() const {
    const uint64_t written = control_->written.load(std::memory_order_acquire);
    return {data_ + (read_ & (capacity_ - 1)), std::min(size_t(written - read_), capacity_)};
  }
  void consume(size_t bytes) { control_->read.store(read_ += bytes, std::memory_order_release); }
  /// The writer is done; what it wrote before is still readable.
  bool is_closed() const { return control_->closed.load(std::memory_order_acquire) != 0; }
  void abandon() { control_->abandoned.store(1, std::memory_order_release); }
  explicit operator bool() const { return control_ != nullptr; }

 private:
  FifoControl* control_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t read_ = 0;
};

}  // namespace lockstep::dist
