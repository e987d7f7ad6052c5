#pragma once
// Ownership across fork(). A forked child has copies of its parent's objects, and so of its connections, files and
// locks, but not its threads. Code that leaves, closes, removes or waits for such an object first asks a Maker whether
// this process made the object. A child never destroys an object whose destructor waits for threads of the parent.
#include <atomic>
#include <memory>

namespace lockstep {

/// Remembers the process that constructed it.
class Maker {
 public:
  /// True in the process that constructed it, false in forked children.
  bool is_here() const { return forks_ == forks(); }

 private:
  static unsigned forks() noexcept;
  unsigned forks_ = forks();
};

/// Keeps an object alive until the process ends: for a forked child's copies of its parent's objects.
void never_destroy(std::shared_ptr<void> object);

/// One T per process, never destroyed; a forked child gets a new one on first use.
template <class T> class PerProcess {
 public:
  /// This process' T.
  T& get() {
    Made* made = made_.load();
    while (!made->maker.is_here()) {
      auto* const own = new Made{.parents = made};
      if (made_.compare_exchange_strong(made, own)) return own->value;
      delete own;  // another thread was faster
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
