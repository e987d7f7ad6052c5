#pragma once
// Observer of kernel calls: set by trace/ while it writes a trace. Without an observer, each kernel call costs only one
// relaxed atomic load more.
#include <atomic>
#include <cstdint>

namespace lockstep {

/// Functions called before and after each kernel call, on the calling thread. A GPU may still be running the kernel
/// when end() is called.
struct KernelObserver {
  int64_t (*begin)() noexcept;                              ///< returns a time stamp for end()
  void (*end)(const char* kernel, int64_t begun) noexcept;  ///< called after the kernel, also if it throws
};
/// The observer, which must live for ever; nullptr: none.
inline constinit std::atomic<const KernelObserver*> kernel_observer{nullptr};

/// Tells the observer when a kernel call begins (constructor) and ends (destructor). `name` must live for ever.
class KernelScope {
 public:
  explicit KernelScope(const char* name) : observer_(kernel_observer.load(std::memory_order_relaxed)), name_(name) {
    if (observer_) [[unlikely]]
      begun_ = observer_->begin();
  }
  ~KernelScope() {
    if (observer_) [[unlikely]]
      observer_->end(name_, begun_);
  }
  KernelScope(const KernelScope&) = delete;

 private:
  const KernelObserver* observer_;
  const char* name_;
  int64_t begun_ = 0;
};

}  // namespace lockstep
