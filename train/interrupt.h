#pragma once
// Ctrl-C and SIGTERM as a wish to stop after the current step.
#include <signal.h>

#include <vector>

namespace lockstep::train {

/// Turns Ctrl-C and SIGTERM into a wish to stop; a second one ends the program at once. Made and destroyed on one
/// thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  static bool requested() { return signal() != 0; }
  /// The one that came first; 0: none.
  static int signal();

 private:
  std::vector<char> stack_;  // that handlers run on
  stack_t before_{};
};

}  // namespace lockstep::train
