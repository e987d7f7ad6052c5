// Tells the process that made an object from its forked children. See maker.h.
#include "tensor/maker.h"

#include <pthread.h>

#include <utility>
#include <vector>

namespace lockstep {

// Identifies a process among itself and all its descendants by counting fork(), without a system call per question.
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
