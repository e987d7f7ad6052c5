#pragma once
// Memory: a caching allocator (64-byte aligned; fresh pages cost more than most kernels) and a ledger that knows, for
// every category, how many bytes are held now and were held at most.
#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "tensor/device.h"

namespace lockstep {

/// offload: what ZeRO moved out of the way, and buffers on the way there.
enum class Memory : uint8_t { parameter, gradient, optimizer, activation, communication, other, offload };
inline constexpr int memory_categories = 7;
std::string_view name_of(Memory category);

/// Storage allocated by this thread while the scope lives is booked under `category` (default: activation inside a
/// recorded forward is just `other` unless a scope says so).
class MemoryScope {
 public:
  explicit MemoryScope(Memory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  static Memory current();

 private:
  Memory previous_;
};

struct MemoryUse {
  int64_t current = 0;  ///< bytes held by live storages
  int64_t peak = 0;     ///< the most since start or reset_peak()
};

struct MemoryReport {
  std::array<MemoryUse, memory_categories> category;
  MemoryUse total;
  int64_t cached = 0;  ///< bytes kept by the allocator for reuse, not held by any storage
};

/// A table with one line per category.
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// Bytes by category over the whole process, on the CPU (all virtual devices together) or on one other device.
MemoryReport memory_report(Device device = cpu);
void reset_peak_memory(Device device = cpu);
/// Gives cached blocks back to the system.
void release_cached_memory(Device device = cpu);

/// Low level, for Storage: at least 64-byte aligned; Error "[memory] ..." with the ledger when the device has none
/// left. On other devices in the order of a stream, see Backend::allocate.
void* allocate(size_t bytes, Device device);
void deallocate(void* data, size_t bytes, Device device, void* stream) noexcept;
void* allocate_cpu(size_t bytes);
void deallocate_cpu(void* data, size_t bytes) noexcept;
/// Blocks of at most small_block bytes from lists of this thread; may be freed on another thread. Storage lives in one.
inline constexpr size_t small_block = 4096;
void* allocate_small(size_t bytes);
void deallocate_small(void* data, size_t bytes) noexcept;
/// Books `bytes` (may be negative) in the ledger.
void book_memory(Memory category, int64_t bytes, Device device = cpu) noexcept;

/// The n-th allocation from now throws (0: never). For tests of out-of-memory paths.
void fail_allocation_after(int64_t n);

}  // namespace lockstep
