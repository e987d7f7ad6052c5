#include "zero/swap.h"

#include <algorithm>

#include "tensor/check.h"

namespace lockstep::zero {

ShardReader::ShardReader(FileQueue& queue, int count, int64_t bytes, bool pin) : queue_(queue), slots_(size_t(count)) {
  for (Slot& slot : slots_) slot.bytes = aligned_bytes(bytes, pin);
}

ShardReader::~ShardReader() {
  for (const size_t unit : held()) {
    try {
      give_back(unit);
    } catch (...) {}  // NOLINT: nobody wants it any more
  }
}

bool ShardReader::has(size_t unit) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.unit == unit; });
}

ShardReader::Slot& ShardReader::slot_of(size_t unit) {
  return *std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.unit == unit; });
}

void ShardReader::take(size_t unit, const SwapFile* file, int64_t offset, int64_t bytes) {
  LOCKSTEP_CHECK(!is_full(), "[offload] expected one of ", slots_.size(), " buffers for shards to be free");
  Slot& slot = slot_of(none);
  slot.unit = unit;
  slot.since = ++turns_;
  if (file && bytes > 0) slot.read = queue_.read(*file, offset, static_cast<std::byte*>(slot.bytes.raw_data()), round_to_block(bytes));
}

const Tensor& ShardReader::wait(size_t unit) {
  LOCKSTEP_CHECK(has(unit), "[offload] expected a unit whose shard is read, got ", unit);
  Slot& slot = slot_of(unit);
  slot.read.wait();
  return slot.bytes;
}

void ShardReader::give_back(size_t unit) {
  if (!has(unit)) return;
  Slot& slot = slot_of(unit);
  slot.unit = none;
  slot.read.wait();  // its memory is written until then
}

size_t ShardReader::oldest() const {
  return std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) { return a.since < b.since; })->unit;
}

std::vector<size_t> ShardReader::held() const {
  std::vector<size_t> units;
  for (const Slot& slot : slots_) if (slot.unit != none) units.push_back(slot.unit);
  return units;
}

}  // namespace lockstep::zero
