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
constexpr size_t huge_page = size_t(2) << 20;

// Eight size classes to a power of two, so that rounding up wastes at most 1/8.
inline size_t class_size(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}
inline int class_index(size_t size) {  // of a size that class_size() returned
  const int power = std::bit_width(size) - 1;
  return power * 8 + int((size >> (power - 3)) & 7);
}

inline void* system_allocate(size_t size) noexcept {
  if (!caching || size < huge_page)
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
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

inline void system_free(void* data, size_t size) noexcept {
  if (!caching || size < huge_page) return std::free(data);
  munmap(data, size);
}

}  // namespace lockstep::pages
