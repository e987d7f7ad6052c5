#pragma once
// What offload to files needs at a rank: the files, and what moves their bytes.
#include <memory>
#include <optional>
#include <vector>

#include "zero/tile_ring.h"

namespace lockstep::zero {

/// Reads shards of stage 3 into buffers, ahead of their need. A slot goes to one unit from take() to give_back(). No decision depends on
/// time, so that all ranks gather in one order.
class ShardReader {
 public:
  ShardReader(FileQueue& queue, int count, int64_t bytes, bool pin);
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  bool has(size_t unit) const;
  bool is_full() const { return !has(none); }
  /// Starts to read. A slot must be free. file: null for a rank that has nothing of it.
  void take(size_t unit, const SwapFile* file, int64_t offset, int64_t bytes);
  /// The bytes, read.
  const Tensor& wait(size_t unit);
  void give_back(size_t unit);
  /// The unit that has had its slot for the longest time.
  size_t oldest() const;
  std::vector<size_t> held() const;

 private:
  static constexpr size_t none = SIZE_MAX;
  struct Slot {
    Tensor bytes;
    size_t unit = none;
    uint64_t since = 0;
    FileQueue::Transfer read;
  };
  Slot& slot_of(size_t unit);
  FileQueue& queue_;
  std::vector<Slot> slots_;
  uint64_t turns_ = 0;
};

struct Swap {
  std::optional<SwapFile> states, shards;
  std::optional<FileQueue> queue;
  std::optional<TileRing> tiles;
  std::optional<ShardReader> reader;
};

}  // namespace lockstep::zero
