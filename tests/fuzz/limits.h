#pragma once
// Limits of every reader: 256 MB of memory plus the size of the input, and 1 s of CPU time for each MB of input or part
// of it. Both are measured under AddressSanitizer, which needs a multiple of what a release build does.
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

// As in clang's sanitizer/allocator_interface.h, which g++ 12 and 13 do not have.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* at);

namespace fuzz {

/// Aborts if the limits for an input of `input` bytes are exceeded while it lives.
class Limits {
 public:
  explicit Limits(size_t input) : seconds_(1 + double(input / 1'000'000)), start_(now()) {
    [[maybe_unused]] static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    held_ = 0;
    max_ = int64_t(256) * 1'000'000 + int64_t(input);
  }
  ~Limits() {
    max_ = INT64_MAX;
    if (const double took = now() - start_; took > seconds_) refuse("seconds", took, seconds_);
  }
  Limits(const Limits&) = delete;

 private:
  static double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }
  static void on_malloc(const volatile void*, size_t bytes) {
    if (const int64_t held = held_ += int64_t(bytes); held > max_)
      refuse("bytes", double(held), double(max_.exchange(INT64_MAX)));
  }
  static void on_free(const volatile void* at) {
    if (at) held_ -= int64_t(__sanitizer_get_allocated_size(at));
  }
  static void refuse(const char* what, double took, double allowed) {
    std::fprintf(stderr, "fuzz: %g %s, at most %g may be taken\n", took, what, allowed);
    std::abort();
  }

  static inline std::atomic<int64_t> held_ = 0, max_ = INT64_MAX;
  const double seconds_, start_;
};

/// Calls read(kind, text) with the first byte and the rest of an input, within the limits. It may throw an Error.
inline int read_as(const uint8_t* data, size_t size, void (*read)(char kind, std::string_view text)) {
  if (size == 0) return 0;
  const Limits limits(size);
  try {
    read(char(data[0]), std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const lockstep::Error&) {}
  return 0;
}

}  // namespace fuzz
