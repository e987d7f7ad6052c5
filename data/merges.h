#pragma once
// The merges of byte-pair encoding: which pairs of tokens become one, and to do so for a word of any length.
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

/// From pairs of numbers to a number >= 0, by open addressing.
class PairMap {
 public:
  bool add(uint32_t first, uint32_t second, int32_t value);  ///< false: the pair is there already
  int32_t find(uint32_t first, uint32_t second) const;       ///< -1: it is not there

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t value = -1;
  };
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

/// What is added first is merged first. The text of `merged` must be that of `left` and `right`: then merging ends.
class Merges {
 public:
  bool add(int32_t left, int32_t right, int32_t merged);  ///< false: the pair is there already
  /// Merges in place, best pair first and of equal ones the leftmost, and gives the number of ids that are left.
  /// n log n for n ids, and near n where few pairs are equal to others out of order.
  size_t apply(std::span<int32_t> ids) const;

 private:
  struct Merge {
    int32_t left, right, merged;
  };
  PairMap ranks_;
  std::vector<Merge> merges_;  // by rank
};

}  // namespace lockstep::data
