// Reuse of the clocks of kernel threads: by stream, by block, and after an OS thread has ended.
#include "tests/cudasim/clocks.h"

#include <algorithm>
#include <mutex>

#include "tests/cudasim/runtime.h"

namespace simt {

constexpr size_t max_streams = 3;  // per OS thread; each may hold 1.6 GB
std::atomic<int> Clocks::live_{0};

struct Clocks::Spare {
  fake::SpinLock lock;
  std::vector<Sets> sets;
};
Clocks::Spare& Clocks::spare() {
  static Spare& all = *new Spare;  // leaked: outlives all threads
  return all;
}

void Clocks::Sets::destroy() {
  for (unsigned i = 0; i < 2 * max_threads; ++i)
    if (clocks[i]) clocks[i].destroy(), --live_;
}

Clocks::~Clocks() {
  const std::lock_guard lock(spare().lock);
  for (Sets& sets : sets_) spare().sets.push_back(std::move(sets));
}

void Clocks::begin_grid(const Clock& stream) {
  const auto found =
      std::find_if(sets_.begin(), sets_.end(), [&](const Sets& sets) { return sets.stream == stream.id(); });
  if (found != sets_.end()) {
    std::rotate(found, found + 1, sets_.end());
    return;
  }
  while (!sets_.empty() && (sets_.size() == max_streams || live_ > max_live)) {
    sets_[0].destroy();
    sets_.erase(sets_.begin());
  }
  const std::lock_guard lock(spare().lock);
  if (spare().sets.empty()) {
    sets_.emplace_back();
  } else {
    sets_.push_back(std::move(spare().sets.back()));
    spare().sets.pop_back();
  }
  sets_.back().stream = stream.id();
}

}  // namespace simt
