#pragma once
// Memory from the system: size classes, and huge pages for what is large. Internal to memory.cpp.
#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace lockstep::pages {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool caching = false;
#else
constexpr bool caching = true;
#endif

constexpr size_t alignment = 64;
constexpr size_t huge_page = size_t(2) << 20, shared_map = size_t(32) << 20;
constexpr size_t smallest_map = size_t(32) << 10;  // from here on all class sizes are whole small pages

// Eight size classes to a power of two, so that rounding up wastes at most 1/8.
inline size_t class_size(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}
inline int class_index(size_t size) {  // of a size that class_size() returned
  const int power = std::bit_width(size) - 1;
  return power * 8 + int((size >> (power - 3)) & 7);
}

// Memory in huge pages, as the processor finds an address in one without walking tables: reading 4 KiB pages in order
// gets 0.6 to 0.9 of the bandwidth.
inline std::byte* map_huge(size_t size) noexcept {
  // Map a huge page more than needed and cut both ends off, so that huge pages fit.
  const size_t mapped = size + huge_page;
  void* map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(map);
  const size_t head = (huge_page - reinterpret_cast<uintptr_t>(map) % huge_page) % huge_page;
  if (head) munmap(begin, head);
  munmap(begin + head + size, mapped - head - size);
  madvise(begin + head, size, MADV_HUGEPAGE);  // a wish; nothing is lost when the system refuses
  return begin + head;
}

inline bool is_mapped(size_t size) { return caching && size >= smallest_map; }

// Blocks below shared_map / 2 are cut from such maps one after the other: alone, what a matrix of 2.4 MB has beyond one
// huge page, or the whole of one of 1.9 MB, would lie in small pages. Callers take turns.
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

inline void system_free(void* data, size_t size) noexcept {
  if (!is_mapped(size)) return std::free(data);
  munmap(data, size);
}

}  // namespace lockstep::pages
