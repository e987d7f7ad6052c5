#pragma once
// A map from places to values, for the checker and the simulator. A place is where a rank holds a chunk: in slot 0, its
// own buffer, or in another slot, a scratch copy. There are millions of places, most of them in slot 0.
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "dist/schedule.h"

namespace lockstep::dist {

/// A hash table with open addressing. No key is UINT64_MAX. Each operator[] may invalidate earlier references.
template <class T> class FlatMap {
 public:
  /// The value of `key`; a new one if there was none.
  T& operator[](uint64_t key) {
    if (2 * (used_ + 1) > cells_.size()) grow();
    Cell& cell = find(key);
    used_ += cell.key != key;
    cell.key = key;
    return cell.value;
  }

 private:
  static constexpr uint64_t none = ~uint64_t(0);
  struct Cell {
    uint64_t key = none;
    T value = {};
  };
  Cell& find(uint64_t key) {
    const size_t mask = cells_.size() - 1;
    size_t at = size_t((key * 0x9e3779b97f4a7c15u) >> 20) & mask;
    while (cells_[at].key != key && cells_[at].key != none) at = (at + 1) & mask;
    return cells_[at];
  }
  void grow() {
    std::vector<Cell> old(cells_.empty() ? 64 : cells_.size() * 2);
    old.swap(cells_);
    for (const Cell& cell : old)
      if (cell.key != none) find(cell.key) = cell;
  }
  std::vector<Cell> cells_;
  size_t used_ = 0;
};

/// If the data are one chunk, or as many chunks as ranks, an array holds the places of slot 0, and a hash table those
/// of all other slots.
/// Each row of the array holds places with the same difference (chunk - rank), which most algorithms use in sequence.
/// Otherwise, or if `sparse` (few places are used), the hash table holds all. at() may invalidate earlier references.
template <class T> class PlaceMap {
 public:
  static constexpr int max_slot = 4095;
  /// Error when the array for slot 0 would exceed 4 GiB.
  PlaceMap(int64_t ranks, int64_t chunks, bool sparse = false) : ranks_(ranks), chunks_(chunks) {
    if (sparse || (chunks != 1 && chunks != ranks)) return;
    const int64_t bytes = ranks * chunks * int64_t(sizeof(T)), limit = int64_t(4) << 30;
    LOCKSTEP_CHECK(bytes <= limit, "[schedule] ", ranks, " ranks of ", chunks, " chunks need ", bytes >> 30,
                   " GiB of memory; at most 4 GiB are allowed: use fewer ranks");
    table_.resize(size_t(ranks * chunks));
  }
  /// The value of a rank's place; a new one if there was none.
  T& at(int32_t rank, const ChunkSlot& p) {
    if (table_.empty() || p.slot != 0)
      return rest_[uint64_t(rank * chunks_ + p.chunk) * (max_slot + 1) + uint64_t(p.slot)];
    const int64_t row = chunks_ == 1 ? 0 : p.chunk >= rank ? p.chunk - rank : p.chunk - rank + ranks_;
    return table_[size_t(row * ranks_ + rank)];
  }

 private:
  int64_t ranks_, chunks_;
  std::vector<T> table_;
  FlatMap<T> rest_;
};

}  // namespace lockstep::dist
