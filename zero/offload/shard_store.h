#pragma once
// Keeps stage 3's parameter shards between gathers: in memory, or in a file with prefetch.
#include <functional>
#include <optional>
#include <vector>

#include "zero/offload/file_queue.h"
#include "zero/stage.h"

namespace lockstep::zero {

/// Parameter shards of this rank, by unit.
class ShardStore {
 public:
  /// Decides which units lie in memory: the first ones, up to offload_param.max_in_cpu elements. The others lie in the
  /// file. An Error on one rank becomes an Error on all ranks.
  explicit ShardStore(const Stage& stage);
  bool is_in_file(size_t unit) const { return offsets_[unit] >= 0; }  ///< true if the unit's shard lies in the file
  int64_t offset(size_t unit) const { return offsets_[unit]; }        ///< offset of the shard in the file, in bytes
  const SwapFile& file() const { return *file_; }                     ///< the file, if a shard lies in it
  void put(size_t unit, const Tensor& shard);                         ///< stores a shard
  /// This rank's shard of a unit, flat. Writing to it changes the store.
  Tensor live(size_t unit) const;

  // For gathers, a shard that lies in the file is read into a buffer (a slot), ahead of time if a slot is free. It
  // keeps its slot until give_back(). No decision depends on timing, so all ranks gather in the same order.
  /// Returns the shard of a unit, for a gather, and waits for the file if necessary. If no slot is free, calls
  /// gathered(u) for the unit u in the oldest slot, and takes this slot. gathered(u) must wait until u is gathered.
  Tensor get(size_t unit, const std::function<void(size_t)>& gathered);
  void give_back(size_t unit);                            ///< frees the slot of a unit, if it has one
  void read_ahead(size_t unit);                           ///< starts to read a shard; needs room()
  bool room() const { return slot_of(none) != nullptr; }  ///< true if a slot is free
  /// True if get() finds the shard in memory or in a slot, or finds a free slot.
  bool can_get(size_t unit) const { return !is_in_file(unit) || slot_of(unit) || room(); }
  std::vector<size_t> read() const;  ///< units that have a slot

 private:
  static constexpr size_t none = SIZE_MAX;
  struct Slot : FileBuffer {
    size_t unit = none;
    uint64_t since = 0;
  };
  Slot* slot_of(size_t unit) const;

  const Stage& s_;
  std::vector<Tensor> tensors_;   // shards in memory, by unit
  std::vector<int64_t> offsets_;  // offsets in the file; -1: in memory
  std::optional<SwapFile> file_;  // none if no shard of this rank lies in it
  std::optional<FileQueue> queue_;
  mutable std::vector<Slot> slots_;
  uint64_t lru_clock_ = 0;
};

}  // namespace lockstep::zero
