#pragma once
// Fibers: stacks that one OS thread switches between, and the calls that tell the sanitizers about the switches. This
// and the emulator are compiled without sanitizers; the sanitizers' functions are weak symbols, present if the program
// has them.
#include <cstddef>

extern "C" {
#define WEAK __attribute__((weak))
WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
WEAK void __asan_poison_memory_region(const volatile void*, size_t);
WEAK void __asan_unpoison_memory_region(const volatile void*, size_t);
WEAK void __lsan_ignore_object(const void*);
WEAK void* __tsan_get_current_fiber();
WEAK void* __tsan_create_fiber(unsigned flags);
WEAK void __tsan_destroy_fiber(void*);
WEAK void __tsan_switch_to_fiber(void*, unsigned flags);
WEAK void __tsan_acquire(void*);
WEAK void __tsan_release(void*);
WEAK void AnnotateIgnoreReadsBegin(const char* file, int line);
WEAK void AnnotateIgnoreReadsEnd(const char* file, int line);
WEAK void AnnotateIgnoreWritesBegin(const char* file, int line);
WEAK void AnnotateIgnoreWritesEnd(const char* file, int line);
#undef WEAK
}

namespace simt {

/// True in programs built with AddressSanitizer or ThreadSanitizer.
inline bool with_asan() { return __asan_poison_memory_region != nullptr; }
inline bool with_tsan() { return __tsan_create_fiber != nullptr; }
/// Forbids, or allows again, access to memory (AddressSanitizer).
inline void poison(const volatile void* p, size_t n) {
  if (with_asan()) __asan_poison_memory_region(p, n);
}
inline void unpoison(const volatile void* p, size_t n) {
  if (with_asan()) __asan_unpoison_memory_region(p, n);
}
/// For ThreadSanitizer: everything before release(x) happens before everything after a later acquire(x).
inline void acquire(void* x) {
  if (with_tsan()) __tsan_acquire(x);
}
inline void release(void* x) {
  if (with_tsan()) __tsan_release(x);
}

/// Between the two, ThreadSanitizer ignores the accesses of the current clock. For the emulator's own bookkeeping.
inline void begin_ignore() {
  if (!with_tsan()) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void end_ignore() {
  if (!with_tsan()) return;
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

/// Replaces pages by zeros; ThreadSanitizer forgets all accesses to them.
void renew(void* pages, size_t bytes);

/// One thread, as ThreadSanitizer sees it. Switching to a clock implies no order: two clocks stay concurrent until
/// they release and acquire.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  /// Creates a clock, ordered after everything that the current one has done.
  void create() {
    if (with_tsan()) clock_ = __tsan_create_fiber(0);
  }
  /// Refers to the clock that runs now.
  void current() {
    if (with_tsan()) clock_ = __tsan_get_current_fiber();
  }
  /// Destroys the clock.
  void destroy() {
    if (clock_) __tsan_destroy_fiber(clock_);
    clock_ = nullptr;
  }
  /// Switches to the clock.
  void enter() const {
    if (clock_) __tsan_switch_to_fiber(clock_, 1);
  }
  /// Identifies the clock; nullptr without ThreadSanitizer.
  const void* id() const { return clock_; }
  explicit operator bool() const { return clock_; }

 private:
  void* clock_ = nullptr;
};

/// Runs `body` on its own stack. Belongs to one OS thread at a time and, for ThreadSanitizer, to one clock.
class Fiber {
 public:
  Fiber(void (*body)(), unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  /// Called on the OS thread's own stack: starts the body or resumes the fiber; returns when the fiber leaves.
  void enter();
  /// Called on the fiber: leaves for good. The next enter() starts the body again.
  void end();
  /// Called on the fiber: suspends it and starts or resumes another fiber of this OS thread, which inherits the place
  /// that this one was entered from. nullptr: returns to that place.
  void leave_to(Fiber* next);

 private:
  void begin();
  static void entry();

  void (*body_)();
  unsigned number_;
  char* stack_;
  void *inside_ = nullptr, *outside_ = nullptr;  // stack pointers
  void *fake_inside_ = nullptr, *fake_outside_ = nullptr;
  const void* outer_bottom_ = nullptr;
  size_t outer_size_ = 0;
};

}  // namespace simt
