// Tells the process that made an object from its forked children. See maker.h.
#include "tensor/maker.h"

#include <pthread.h>

#include <utility>
#include <vector>

namespace lockstep {

// How many fork() calls lie between the first process and this one. The number differs between a process and all its
// descendants, so is_here() needs no system call.
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
