// Handles Ctrl-C and SIGTERM as requests to stop. See interrupt.h.
#include "train/interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace lockstep::train {

namespace {

std::atomic<int> first_signal = 0;  // ranks that are threads read it while another one makes an Interrupt

void on_signal(int signal) {
  if (first_signal != 0) std::_Exit(128 + signal);
  first_signal = signal;
}

}  // namespace

// In the thread that makes an Interrupt, handlers run on an alternate stack. Without it, one of twenty runs that Ctrl-C
// stopped inside oneDNN's sgemm (2.6.3) ended with a corrupt heap, as if its kernels kept data below the stack pointer.
Interrupt::Interrupt() : stack_(1 << 16) {
  const stack_t own{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  LOCKSTEP_CHECK(sigaltstack(&own, &before_) == 0, "expected a stack for signals, got: ", std::strerror(errno),
                 "; this is a bug in Lockstep, please report it");
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}
Interrupt::~Interrupt() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  sigaltstack(&before_, nullptr);
  first_signal = 0;
}
int Interrupt::signal() { return first_signal; }

}  // namespace lockstep::train
