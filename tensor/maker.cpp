#include "tensor/maker.h"

#include <pthread.h>

#include <utility>
#include <vector>

namespace lockstep {

// A number of its own for a process and all its descendants: fork() counts, without a system call for each question.
unsigned Maker::forks() noexcept {
  static unsigned count = 0;
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++count; });
  return count;
}

void never_destroy(std::shared_ptr<void> object) {
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  kept->push_back(std::move(object));
}

}  // namespace lockstep
