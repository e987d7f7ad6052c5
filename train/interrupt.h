#pragma once
// Ctrl-C and SIGTERM as a request to stop after the current step.
#include <signal.h>

#include <vector>

namespace lockstep::train {

/// While an Interrupt lives, Ctrl-C and SIGTERM request a stop; a second signal ends the process at once. Create and
/// destroy it on the same thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  static bool requested() { return signal() != 0; }  ///< true after a signal
  /// The first signal, or 0.
  static int signal();

 private:
  std::vector<char> stack_;  // alternate stack for the handlers
  stack_t before_{};
};

}  // namespace lockstep::train
