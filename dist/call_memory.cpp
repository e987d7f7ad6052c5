// call_memory.cpp: finds the memory that each transfer of a collective reads and writes. See call_memory.h.
#include "dist/call_memory.h"

#include <algorithm>

#include "dist/wait_policy.h"
#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

constexpr size_t small_scratch = 32 << 10;
size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void CallMemory::measure(const Execution& call) {
  const Program& program = *call.program;
  const size_t items = program.items.size(), places = program.places.size(), element = size_t(size_of(call.dtype));
  longest = scratch_bytes_ = 0;
  memory_.assign(places, nullptr);
  length_.resize(places);
  for (size_t p = 0; p < places; ++p) {
    const ChunkSlot& place = program.places[p];
    length_[p] = call.chunk_bytes(place.chunk);
    longest = std::max(longest, length_[p]);
    LOCKSTEP_CHECK(length_[p] % element == 0, "[", what(call), "] expected whole elements of ", element,
                   " bytes, got a chunk of ", length_[p], " bytes; this is a bug in Lockstep, please report it");
    if (place.slot > 0) {
      scratch_bytes_ += aligned(length_[p]);
      continue;
    }
    const auto memory = call.memory(place.chunk);
    LOCKSTEP_CHECK(memory.size() == length_[p], "[", what(call), "] expected ", length_[p],
                   " bytes of memory for chunk ", place.chunk, ", got ", memory.size(),
                   "; this is a bug in Lockstep, please report it");
    memory_[p] = memory.data();
  }
  size.resize(items);
  for (size_t i = 0; i < items; ++i) {
    const Program::Item& item = program.items[i];
    if (item.source >= 0) size[i] = length_[size_t(item.source)];
    if (item.target < 0) continue;
    LOCKSTEP_CHECK(item.source < 0 || length_[size_t(item.target)] == size[i], "[", what(call),
                   "] expected chunks of one length in a transfer, got ", size[i], " and ",
                   length_[size_t(item.target)], " bytes; this is a bug in Lockstep, please report it");
    size[i] = length_[size_t(item.target)];
  }
}

Tensor CallMemory::lay_out(const Program& program) {
  Tensor scratch;
  if (scratch_bytes_ > 0) {
    std::byte* next = nullptr;
    if (scratch_bytes_ <= small_scratch) {
      small_.resize(small_scratch);
      next = small_.data();
    } else {
      const MemoryScope scope(Memory::communication);
      scratch = empty({int64_t(scratch_bytes_)}, {.dtype = u8, .device = cpu});
      next = scratch.storage()->data();
    }
    for (size_t p = 0; p < program.places.size(); ++p)
      if (program.places[p].slot > 0) {
        memory_[p] = next;
        next += aligned(length_[p]);
      }
  }
  source.assign(program.items.size(), nullptr);
  target.assign(program.items.size(), nullptr);
  for (size_t i = 0; i < program.items.size(); ++i) {
    const Program::Item& item = program.items[i];
    if (item.source >= 0) source[i] = memory_[size_t(item.source)];
    if (item.target >= 0) target[i] = memory_[size_t(item.target)];
  }
  return scratch;
}

}  // namespace lockstep::dist
