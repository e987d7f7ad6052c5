// Applies the merges of byte-pair encoding to a word. See merges.h.
#include "extensions/hugging_face/merges.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>

#include "base/check.h"

namespace lockstep::data {
namespace {

/// A priority queue of positions of pairs to merge: lower ranks (places in the list of merges) come first, and within a
/// rank, positions further left. One heap for all would take minutes for a word of 100 million letters. Positions of
/// one rank arrive almost sorted, so each rank has a list for those that arrive in order and a heap for the rest.
class Places {
 public:
  void add(int32_t rank, int32_t place) {
    const auto [found, is_new] = by_rank_.try_emplace(rank);
    if (is_new) ranks_.push(rank);
    Waiting& waiting = found->second;
    if (waiting.list.empty() || waiting.list.back() < place) waiting.list.push_back(place);
    else waiting.late.push(place);
  }
  /// Takes the next position. False if none is left. `ahead` is a position that follows soon, for prefetching: in a
  /// long word consecutive positions are far apart in memory.
  bool next(int32_t& rank, int32_t& place, int32_t& ahead) {
    for (; !ranks_.empty(); ranks_.pop()) {
      rank = ranks_.top();
      if (rank != current_) current_ = rank, waiting_ = &by_rank_[rank];
      Waiting& waiting = *waiting_;
      const bool listed = waiting.at < waiting.list.size();
      if (!waiting.late.empty() && (!listed || waiting.late.top() <= waiting.list[waiting.at])) {
        place = ahead = waiting.late.top();
        waiting.late.pop();
        return true;
      }
      if (listed) {
        place = waiting.list[waiting.at++];
        ahead = waiting.list[std::min(waiting.at + 16, waiting.list.size() - 1)];
        return true;
      }
      by_rank_.erase(rank);
      current_ = -1;
    }
    return false;
  }

 private:
  struct Waiting {
    std::vector<int32_t> list;
    size_t at = 0;
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> late;
  };
  std::unordered_map<int32_t, Waiting> by_rank_;  // references to its elements stay valid
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ranks_;
  int32_t current_ = -1;
  Waiting* waiting_ = nullptr;
};

}  // namespace

size_t PairMap::slot_of(uint64_t key) const {
  size_t at = size_t((key * 0x9e3779b97f4a7c15ull) >> 32) & (slots_.size() - 1);
  while (slots_[at].value >= 0 && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  return at;
}

bool PairMap::add(uint32_t first, uint32_t second, int32_t value) {
  if (2 * (used_ + 1) > slots_.size()) {
    std::vector<Slot> old(std::max<size_t>(64, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.value >= 0) slots_[slot_of(slot.key)] = slot;
  }
  const uint64_t key = uint64_t(first) << 32 | second;
  Slot& slot = slots_[slot_of(key)];
  if (slot.value >= 0) return false;
  slot = {key, value};
  ++used_;
  return true;
}

int32_t PairMap::find(uint32_t first, uint32_t second) const {
  return slots_.empty() ? -1 : slots_[slot_of(uint64_t(first) << 32 | second)].value;
}

bool Merges::add(int32_t left, int32_t right, int32_t merged) {
  if (!ranks_.add(uint32_t(left), uint32_t(right), int32_t(merges_.size()))) return false;
  merges_.push_back({left, right, merged});
  return true;
}

// ids[i] is the token that starts at position i, or -1 inside a token. lengths[i] is a token's length, stored at its
// first and last position.
size_t Merges::apply(std::span<int32_t> ids) const {
  const int64_t n = int64_t(ids.size());
  LOCKSTEP_CHECK(n < INT32_MAX, "[tokenizer] expected a word of less than 2^31 characters, got ", n,
                 "; split the text");
  std::vector<int32_t> lengths(ids.size(), 1);
  Places places;
  const auto propose = [&](int64_t left, int64_t right) {
    const int32_t rank = ranks_.find(uint32_t(ids[size_t(left)]), uint32_t(ids[size_t(right)]));
    if (rank >= 0) places.add(rank, int32_t(left));
  };
  for (int64_t i = 0; i + 1 < n; ++i) propose(i, i + 1);
  for (int32_t rank, place, ahead; places.next(rank, place, ahead);) {
    __builtin_prefetch(&ids[size_t(ahead)], 1);
    __builtin_prefetch(&lengths[size_t(ahead)], 1);
    const Merge& merge = merges_[size_t(rank)];
    const int64_t left = place, right = left + lengths[size_t(left)];
    // An earlier merge may have changed this pair since it was put into `places`: then skip it.
    if (ids[size_t(left)] != merge.left || right >= n || ids[size_t(right)] != merge.right) continue;
    const int64_t end = right + lengths[size_t(right)];
    ids[size_t(left)] = merge.merged;
    ids[size_t(right)] = -1;
    lengths[size_t(left)] = lengths[size_t(end - 1)] = int32_t(end - left);
    if (left > 0) propose(left - lengths[size_t(left - 1)], left);
    if (end < n) propose(left, end);
  }
  size_t kept = 0;
  for (int64_t i = 0; i < n; i += lengths[size_t(i)]) ids[kept++] = ids[size_t(i)];
  return kept;
}

}  // namespace lockstep::data
