#pragma once
// Multiply-accumulates of matrix products, convolutions and attention, counted where they are dispatched.
#include <algorithm>
#include <cstdint>

namespace lockstep {

/// Pairs of a query and a key that a head scores, when the queries are the last of `keys` tokens; causal and window as
/// in AttentionArgs.
inline int64_t attended_pairs(int64_t queries, int64_t keys, bool causal, int64_t window = 0) {
  if (!causal) return queries * keys;
  int64_t pairs = 0;
  for (int64_t i = 0; i < queries; ++i)
    pairs += std::clamp<int64_t>(keys - queries + i + 1, 0, window > 0 ? std::min(window, keys) : keys);
  return pairs;
}

/// While it lives, those of this thread are added up. Nested counters: the inner one counts for both.
class MacCounter {
 public:
  MacCounter() : outer_(current_) { current_ = this; }
  ~MacCounter() {
    current_ = outer_;
    add(count_);
  }
  MacCounter(const MacCounter&) = delete;
  int64_t count() const { return count_; }
  static bool active() { return current_ != nullptr; }
  static void add(int64_t macs) {
    if (current_) current_->count_ += macs;
  }

 private:
  inline static thread_local MacCounter* current_ = nullptr;
  MacCounter* outer_;
  int64_t count_ = 0;
};

}  // namespace lockstep
