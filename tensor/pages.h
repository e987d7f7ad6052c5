#pragma once
// Memory from the operating system: size classes, and huge pages for large blocks. Internal to memory.cpp.
#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace lockstep::pages {

/// False under AddressSanitizer, which must see every free.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool caching = false;
#else
constexpr bool caching = true;
#endif

/// Alignment of all blocks, in bytes.
constexpr size_t alignment = 64;
/// Bytes of a huge page, and of a memory map (mmap) from which several blocks are cut.
constexpr size_t huge_page = size_t(2) << 20, shared_map = size_t(32) << 20;
constexpr size_t smallest_map = size_t(32) << 10;  // from here on all class sizes are multiples of a small page

/// Rounds a size up to its class. Eight classes per power of two: at most 1/8 is wasted.
inline size_t class_size(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}
/// Index of a class, from a size that class_size() returned.
inline int class_index(size_t size) {
  const int power = std::bit_width(size) - 1;
  return power * 8 + int((size >> (power - 3)) & 7);
}

/// Maps memory in huge pages, whose addresses need fewer table walks. Reading 4 KiB pages in order reaches only 0.6 to
/// 0.9 of the bandwidth of huge pages. nullptr on failure.
inline std::byte* map_huge(size_t size) noexcept {
  // Map one huge page more than needed and cut off both ends, so that the block begins at a huge page.
  const size_t mapped = size + huge_page;
  void* map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(map);
  const size_t head = (huge_page - reinterpret_cast<uintptr_t>(map) % huge_page) % huge_page;
  if (head) munmap(begin, head);
  munmap(begin + head + size, mapped - head - size);
  madvise(begin + head, size, MADV_HUGEPAGE);  // only a hint; harmless if the system refuses
  return begin + head;
}

/// True for sizes that system_allocate() gets from mmap.
inline bool is_mapped(size_t size) { return caching && size >= smallest_map; }

/// Allocates memory from the system. Blocks below shared_map / 2 are cut one after the other from shared maps of huge
/// pages. If a block had a map of its own, the part that does not fill a huge page would lie in small pages: all of a
/// block of 1.9 MB, or the last 0.4 MB of a block of 2.4 MB. Not thread-safe.
inline void* system_allocate(size_t size) noexcept {
  if (!is_mapped(size)) return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (size >= shared_map / 2) return map_huge(size);
  static std::byte *next = nullptr, *end = nullptr;
  if (size_t(end - next) < size) {
    std::byte* const map = map_huge(shared_map);
    if (!map) return map_huge(size);
    if (next != end) munmap(next, size_t(end - next));
    next = map, end = map + shared_map;
  }
  next += size;
  return next - size;
}

/// Gives memory from system_allocate() back to the system.
inline void system_free(void* data, size_t size) noexcept {
  if (!is_mapped(size)) return std::free(data);
  munmap(data, size);
}

}  // namespace lockstep::pages
