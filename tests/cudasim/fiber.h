#pragma once
// Fibers: stacks that one OS thread switches between, and what the sanitizers must be told about them. All of this, and
// the emulator, is compiled without sanitizers; their functions are found at run time when the program has them.
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

inline bool with_asan() { return __asan_poison_memory_region != nullptr; }
inline bool with_tsan() { return __tsan_create_fiber != nullptr; }
inline void poison(const volatile void* p, size_t n) {
  if (with_asan()) __asan_poison_memory_region(p, n);
}
inline void unpoison(const volatile void* p, size_t n) {
  if (with_asan()) __asan_unpoison_memory_region(p, n);
}
/// What happened before release(x) happens before what follows acquire(x).
inline void acquire(void* x) {
  if (with_tsan()) __tsan_acquire(x);
}
inline void release(void* x) {
  if (with_tsan()) __tsan_release(x);
}

/// Between them ThreadSanitizer does not look at what the current clock does: bookkeeping of our own.
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

/// Zeros in these pages; to ThreadSanitizer they look as if nobody had been there.
void renew(void* pages, size_t bytes);

/// ThreadSanitizer's idea of a thread. Switching to one says nothing about order: two of them stay concurrent until
/// they release and acquire.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  /// A new one, after everything that the current one has done.
  void create() {
    if (with_tsan()) clock_ = __tsan_create_fiber(0);
  }
  void current() {
    if (with_tsan()) clock_ = __tsan_get_current_fiber();
  }
  void destroy() {
    if (clock_) __tsan_destroy_fiber(clock_);
    clock_ = nullptr;
  }
  void enter() const {
    if (clock_) __tsan_switch_to_fiber(clock_, 1);
  }
  const void* id() const { return clock_; }
  explicit operator bool() const { return clock_; }

 private:
  void* clock_ = nullptr;
};

/// Runs `body` on a stack of its own: of one OS thread, and to ThreadSanitizer of one clock, at a time.
class Fiber {
 public:
  Fiber(void (*body)(), unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  /// From the OS thread's own stack: goes on where the fiber left, or begins body; returns when the fiber leaves.
  void enter();
  /// From the fiber, for good: the next enter() begins body again.
  void end();
  /// From the fiber: another one of this OS thread begins or goes on, and leaves to where this one was entered from;
  /// nullptr: what entered this one goes on.
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
