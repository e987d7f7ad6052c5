#pragma once
// The merges of byte-pair encoding: which pairs of tokens join, and how to apply them to a word of any length.
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

/// A hash map from pairs of numbers to a number >= 0, with open addressing.
class PairMap {
 public:
  bool add(uint32_t first, uint32_t second, int32_t value);  ///< false if the pair is already there
  int32_t find(uint32_t first, uint32_t second) const;       ///< -1 if there is no such pair

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t value = -1;
  };
  size_t slot_of(uint64_t key) const;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

/// The list of merges, in order of rank: what is added first is merged first. The text of `merged` must be the
/// text of `left` followed by the text of `right`; this guarantees that merging ends.
class Merges {
 public:
  bool add(int32_t left, int32_t right, int32_t merged);  ///< false if the pair is already there
  /// Merges `ids` in place, the pair of lowest rank first and the leftmost of equal ones. Returns the number of ids
  /// left. Takes O(n log n) for n ids, and nearly O(n) if pairs of equal rank appear mostly from left to right.
  size_t apply(std::span<int32_t> ids) const;

 private:
  struct Merge {
    int32_t left, right, merged;
  };
  PairMap ranks_;
  std::vector<Merge> merges_;  // sorted by rank
};

}  // namespace lockstep::data
