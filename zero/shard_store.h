#pragma once
// Where stage 3's shards of parameters lie between gathers: in memory, or in a file, from which they are read ahead.
#include <functional>
#include <optional>
#include <vector>

#include "zero/file_queue.h"
#include "zero/stage.h"

namespace lockstep::zero {

class ShardStore {
 public:
  /// Decides which of the units lie in a file: what offload_param.max_in_cpu has no room for.
  explicit ShardStore(const Stage& stage);
  bool is_in_file(size_t unit) const { return offsets_[unit] >= 0; }
  int64_t offset(size_t unit) const { return offsets_[unit]; }
  const SwapFile& file() const { return *file_; }
  void put(size_t unit, const Tensor& shard);
  /// This rank's part, live, flat.
  Tensor live(size_t unit) const;

  // To be gathered. One in a file is read into a slot, ahead of its need where there is one, and has it until
  // give_back(). No decision depends on time, so that all ranks gather in one order.
  /// Read by now, or read at last. gathered(u): waits until unit u does not need its slot any more.
  Tensor get(size_t unit, const std::function<void(size_t)>& gathered);
  void give_back(size_t unit);
  void read_ahead(size_t unit);  ///< there must be room()
  bool room() const { return slot_of(none) != nullptr; }
  bool can_get(size_t unit) const {
    return !is_in_file(unit) || slot_of(unit) || room();
  }  ///< without taking another's slot
  std::vector<size_t> read() const;

 private:
  static constexpr size_t none = SIZE_MAX;
  struct Slot : FileBuffer {
    size_t unit = none;
    uint64_t since = 0;
  };
  Slot* slot_of(size_t unit) const;

  const Stage& s_;
  std::vector<Tensor> tensors_;   // by unit: in memory
  std::vector<int64_t> offsets_;  // in the file; -1: in memory
  std::optional<SwapFile> file_;  // none for a rank that has nothing of them
  std::optional<FileQueue> queue_;
  mutable std::vector<Slot> slots_;
  uint64_t turns_ = 0;
};

}  // namespace lockstep::zero
