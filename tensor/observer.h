#pragma once
// Who is told of every kernel that is dispatched: trace/, while a trace is written. Nobody else: then a kernel costs
// one relaxed load more.
#include <atomic>
#include <cstdint>

namespace lockstep {

/// On the thread that calls the kernel. A device works on after that.
struct KernelObserver {
  int64_t (*begin)() noexcept;                              ///< gives back a time for end()
  void (*end)(const char* kernel, int64_t begun) noexcept;  ///< also when the kernel threw
};
/// Points at something that lives for ever.
inline constinit std::atomic<const KernelObserver*> kernel_observer{nullptr};

/// A kernel's name from its call to its return. `name` must live for ever.
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
