// Parameter shards in memory or in a file. See shard_store.h.
#include "zero/offload/shard_store.h"

#include <algorithm>

#include "tensor/ops.h"

namespace lockstep::zero {

ShardStore::ShardStore(const Stage& stage) : s_(stage), tensors_(stage.units.size()), offsets_(stage.units.size(), -1) {
  const OffloadParam& o = stage.options.offload_param;
  if (o.device != Offload::nvme) return;
  int64_t bytes = 0, in_memory = 0, longest = 0;
  for (size_t u = 0; u < stage.units.size(); ++u) {
    const Unit& unit = stage.units[u];
    if (unit.persistent) continue;
    in_memory += unit.layout.shard;  // equal on all ranks, because it influences the order of gathers
    if (in_memory <= o.max_in_cpu) continue;
    LOCKSTEP_CHECK(unit.layout.shard <= o.buffer_size, "[zero] offload_param.buffer_size ", o.buffer_size,
                   " is too small for ", unit.tag, ": expected at least ", unit.layout.shard, "; raise it");
    offsets_[u] = bytes;
    bytes += round_to_block(stage.shard(unit).size() * size_of(unit.dtype));
    longest = std::max(longest, unit.layout.shard * size_of(unit.dtype));
  }
  stage.on_files([&] {
    if (bytes > 0)
      file_.emplace(o.nvme_path, str("the parameter shards of rank ", stage.group.world_rank(stage.rank())), bytes,
                    false);  // every byte is written next
    queue_.emplace(stage.options.aio);
    if (longest > 0) slots_ = std::vector<Slot>(size_t(o.buffer_count));
    for (Slot& slot : slots_) slot.bytes = aligned_bytes(longest, o.pin_memory);
  });
}

void ShardStore::put(size_t u, const Tensor& shard) {
  if (is_in_file(u)) return s_.on_files([&] { live(u).copy_(shard); });
  const bool stays = s_.options.offload_param.device == Offload::none;
  const MemoryScope home(stays ? Memory::parameter : Memory::offload);
  tensors_[u] = stays || s_.device.is_cpu() ? shard.clone() : moved(shard, cpu);
}

Tensor ShardStore::live(size_t u) const {
  if (!is_in_file(u)) return tensors_[u];
  const Unit& unit = s_.units[u];
  const int64_t n = s_.shard(unit).size();
  return n > 0 ? file_->map(offsets_[u], n, unit.dtype) : empty({0}, {.dtype = unit.dtype, .device = cpu});
}

ShardStore::Slot* ShardStore::slot_of(size_t u) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.unit == u; });
  return found == slots_.end() ? nullptr : &*found;
}

Tensor ShardStore::get(size_t u, const std::function<void(size_t)>& gathered) {
  if (!is_in_file(u)) return tensors_[u];
  if (!can_get(u)) {  // free the oldest slot: its unit is being gathered, or was read ahead but not needed
    const size_t oldest = std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
                            return a.since < b.since;
                          })->unit;
    gathered(oldest);
    give_back(oldest);
  }
  read_ahead(u);
  Slot& slot = *slot_of(u);
  s_.on_files([&] { slot.wait(); });
  return Tensor(slot.bytes.storage(), 0, {s_.shard(s_.units[u]).size()}, {1}, s_.units[u].dtype);
}

void ShardStore::give_back(size_t u) {
  Slot* const slot = slot_of(u);
  if (!slot) return;
  slot->unit = none;
  s_.on_files([&] { slot->wait(); });
}

void ShardStore::read_ahead(size_t u) {
  if (!is_in_file(u) || slot_of(u)) return;
  Slot& slot = *slot_of(none);
  slot.unit = u;
  slot.since = ++lru_clock_;
  const int64_t bytes = s_.shard(s_.units[u]).size() * size_of(s_.units[u].dtype);
  if (bytes > 0)
    slot.transfers.push_back(
        queue_->read(*file_, offsets_[u], static_cast<std::byte*>(slot.bytes.raw_data()), round_to_block(bytes)));
}

std::vector<size_t> ShardStore::read() const {
  std::vector<size_t> units;
  for (const Slot& slot : slots_)
    if (slot.unit != none) units.push_back(slot.unit);
  return units;
}

}  // namespace lockstep::zero
