#pragma once
// Multiply-accumulates of matrix products, convolutions and attention, counted where they are dispatched.
#include <cstdint>

namespace lockstep {

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
