// Shared memory: an arena with red zones between the arrays of a block.
#include "tests/cudasim/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "tests/cudasim/fiber.h"

namespace simt {

namespace {
constexpr size_t page = 4096, arena_bytes = shared_arena_bytes, max_static = 48 * 1024, red_zone = 64;
}

SharedMemory::SharedMemory() {
  arrays_.reserve(256);  // threads of a kernel must not allocate
  gaps_.reserve(512);
  arena_ = static_cast<unsigned char*>(
      mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  poison(arena_, arena_bytes);
}
SharedMemory::~SharedMemory() {
  unpoison(arena_, arena_bytes);
  munmap(arena_, arena_bytes);
}

bool SharedMemory::end_block() {
  bool intact = true;
  if (!with_asan() && used_ > 0) {
    for (const size_t edge : {used_, used_ + red_zone}) gaps_.push_back(edge);
    for (size_t i = 0; i < gaps_.size(); i += 2)
      intact = intact && std::accumulate(arena_ + gaps_[i], arena_ + gaps_[i + 1], 0xff, std::bit_and<>()) == 0xff;
  }
  // The next block must find memory that ThreadSanitizer regards as new (as for stacks).
  if (with_tsan() && used_ > 0) renew(arena_, (used_ + page - 1) / page * page);
  poison(arena_, used_);
  arrays_.clear();
  gaps_.clear();
  dynamic_ = nullptr;
  used_ = filled_ = static_bytes_ = 0;
  return intact;
}

void* SharedMemory::array(const void* key, size_t bytes, size_t align, const char* name) {
  for (const Array& known : arrays_)
    if (known.key == key) return known.data;
  static_bytes_ += bytes;
  if (static_bytes_ > max_static)
    fault(str("shared memory: ", static_bytes_, " static bytes, ptxas allows ", max_static, " (at ", name, ")"));
  return arrays_.emplace_back(Array{key, allocate(bytes, std::max<size_t>(align, 16), name)}).data;
}

void* SharedMemory::dynamic_array() {
  if (dynamic_bytes_ == 0) fault("the kernel uses dynamic shared memory, and its launch asks for none");
  if (!dynamic_) dynamic_ = allocate(dynamic_bytes_, 16, "the dynamic array");
  return dynamic_;
}

void* SharedMemory::allocate(size_t bytes, size_t align, const char* name) {
  const size_t begin = (used_ + red_zone + align - 1) / align * align;
  if (static_bytes_ + dynamic_bytes_ > max_shared() || begin + bytes + red_zone > arena_bytes)
    fault(str("shared memory: ", static_bytes_, " bytes and ", dynamic_bytes_,
              " dynamic ones are more than the device has (at ", name, ")"));
  unsigned char* data = arena_ + begin;
  unpoison(data, bytes);
  // Neither vector::insert() nor, below, memset(): ThreadSanitizer would attribute them to the kernel.
  if (!with_asan())
    for (const size_t edge : {used_, begin}) gaps_.push_back(edge);
  // Bytes filled earlier may have been written to since; only new ones are filled. An array starts at a whole word.
  const size_t end = begin + bytes, first = with_asan() ? begin : filled_,
               last = ((with_asan() ? end : end + red_zone) + 7) / 8 * 8;
  for (size_t at = first; at < last; at += 8) *reinterpret_cast<volatile uint64_t*>(arena_ + at) = ~uint64_t(0);
  used_ = end;
  filled_ = last;
  return data;
}

}  // namespace simt
