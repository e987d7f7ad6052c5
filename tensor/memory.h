#pragma once
// Memory: an allocator that caches freed blocks, because getting fresh pages from the system takes longer than most
// kernels; and a ledger of the bytes that each category holds now and held at its peak.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tensor/device.h"

namespace lockstep {

/// Categories by which memory is counted. offload: state that ZeRO moved to host memory, and its staging buffers.
enum class Memory : uint8_t { parameter, gradient, optimizer, activation, communication, other, offload };
inline constexpr int memory_categories = 7;  ///< number of categories
std::string_view name_of(Memory category);   ///< "parameter", "gradient", ...

/// While a MemoryScope lives, storage that this thread allocates is counted under `category`. Storage allocated outside
/// of all scopes is counted under `other`, even if it holds activations.
class MemoryScope {
 public:
  explicit MemoryScope(Memory category);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  static Memory current();  ///< category of the innermost scope

 private:
  Memory previous_;
};

/// Bytes of one category in the ledger.
struct MemoryUse {
  int64_t current = 0;  ///< bytes held by live storages
  int64_t peak = 0;     ///< maximum since start or reset_peak_memory()
};

/// Bytes by category and in total, as memory_report() returns them.
struct MemoryReport {
  std::array<MemoryUse, memory_categories> category;
  MemoryUse total;
  int64_t cached = 0;  ///< bytes kept by the allocator for reuse
};

/// Prints a table with one line per category.
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// Bytes by category that the whole process holds on `device`. All virtual CPU devices count as one device.
MemoryReport memory_report(Device device = cpu);
/// Sets the peak of every category to its current value.
void reset_peak_memory(Device device = cpu);
/// Returns cached blocks to the system.
void release_cached_memory(Device device = cpu);

// The next functions count each device by itself, also each virtual CPU device. So a model that is meant for several
// small devices can be tried on one machine.
/// The memory_report() of this device. The category Memory::offload is left out, because it lies in host memory.
MemoryReport device_memory(Device device);
/// Sets the peaks of device_memory() to the current values.
void reset_peak_device_memory(Device device);
/// Limits the bytes of tensors on a device; 0: no limit. An allocation that exceeds the limit is an Error.
/// Memory::offload does not count. Threads that allocate at the same moment may exceed the limit together.
void set_memory_limit(Device device, int64_t bytes);
/// The limit in bytes; 0: none.
int64_t memory_limit(Device device);
/// Bytes that a device can hold: memory_limit() or the GPU's memory, whichever is less. A CPU device has only a limit.
/// 0: unknown.
int64_t memory_size(Device device);

/// Thrown when memory runs out: host memory, memory shared with other ranks, or a device's. The message has the ledger.
struct OutOfMemory : Error {
  using Error::Error;
};
/// Returns what to do when memory has run out on a device: lines of text, or "".
using MemoryAdvice = std::function<std::string(Device device)>;
/// Adds `advice` to the messages of OutOfMemory on this thread, as long as the object exists. An engine adds its own.
void add_memory_advice(const std::shared_ptr<const MemoryAdvice>& advice);
/// Throws an OutOfMemory: `what`, which says what was wanted, then the ledger of `device`, then what to do.
[[noreturn]] void fail_out_of_memory(const std::string& what, Device device = cpu);

/// Low level, for Storage: allocates memory with at least 64-byte alignment. Throws an OutOfMemory when no memory is
/// left. On other devices than the CPU, the memory is for work on this thread's current stream.
void* allocate(size_t bytes, Device device);
/// Frees memory that allocate() returned. `stream`: the stream that was current when allocate() was called.
void deallocate(void* data, size_t bytes, Device device, void* stream) noexcept;
/// Allocates CPU memory, like allocate().
void* allocate_cpu(size_t bytes);
/// Frees memory that allocate_cpu() returned.
void deallocate_cpu(void* data, size_t bytes) noexcept;
/// Largest size of a small block. Each thread caches small blocks, but any thread may free them. Storage objects are
/// small blocks.
inline constexpr size_t small_block = 4096;
/// Allocates a block of at most small_block bytes.
void* allocate_small(size_t bytes);
/// Frees a block of allocate_small().
void deallocate_small(void* data, size_t bytes) noexcept;
/// Adds `bytes` (may be negative) to a category of the ledger.
void book_memory(Memory category, int64_t bytes, Device device = cpu) noexcept;

/// Makes the n-th allocation from now throw an Error; 0 cancels this. For tests of out-of-memory paths.
void fail_allocation_after(int64_t n);

}  // namespace lockstep
