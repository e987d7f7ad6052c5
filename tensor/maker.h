#pragma once
// A forked child has copies of its parent's objects, and with them of its connections, files and locks, but not its
// threads. Whatever leaves, closes, removes or waits for one of these asks first whose it is; what only some thread
// could end is never destroyed in a child.
#include <atomic>
#include <memory>

namespace lockstep {

/// Remembers the process that made it.
class Maker {
 public:
  bool is_here() const { return forks_ == forks(); }

 private:
  static unsigned forks() noexcept;
  unsigned forks_ = forks();
};

/// In a child: keeps what is the parent's as it is until the process ends.
void never_destroy(std::shared_ptr<void> object);

/// One T for each process, never destroyed: a child begins with one of its own.
template <class T> class PerProcess {
 public:
  T& get() {
    Made* made = made_.load();
    while (!made->maker.is_here()) {
      auto* const own = new Made{.parents = made};
      if (made_.compare_exchange_strong(made, own)) return own->value;
      delete own;  // another thread was first
    }
    return made->value;
  }

 private:
  struct Made {
    Made* parents = nullptr;
    T value{};
    Maker maker{};
  };
  std::atomic<Made*> made_{new Made};
};

}  // namespace lockstep
