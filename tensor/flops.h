#pragma once
// Counts the multiply-accumulates of matrix products, convolutions and attention when these operations are called.
#include <algorithm>
#include <cstdint>

namespace lockstep {

/// Number of (query, key) pairs for which a head computes a score. The queries are the last `queries` of `keys` tokens;
/// causal and window are as in AttentionArgs.
inline int64_t attended_pairs(int64_t queries, int64_t keys, bool causal, int64_t window = 0) {
  if (!causal) return queries * keys;
  int64_t pairs = 0;
  for (int64_t i = 0; i < queries; ++i)
    pairs += std::clamp<int64_t>(keys - queries + i + 1, 0, window > 0 ? std::min(window, keys) : keys);
  return pairs;
}

/// Counts the multiply-accumulates of this thread while it lives. Counters may nest: at its end, an inner counter adds
/// its count to the outer one.
class MacCounter {
 public:
  MacCounter() : outer_(current_) { current_ = this; }
  ~MacCounter() {
    current_ = outer_;
    add(count_);
  }
  MacCounter(const MacCounter&) = delete;
  int64_t count() const { return count_; }
  /// True if this thread has a counter.
  static bool active() { return current_ != nullptr; }
  /// Adds to this thread's counter, if there is one.
  static void add(int64_t macs) {
    if (current_) current_->count_ += macs;
  }

 private:
  inline static thread_local MacCounter* current_ = nullptr;
  MacCounter* outer_;
  int64_t count_ = 0;
};

}  // namespace lockstep
