// deadman.cpp: ends the process when a step exceeds its limit. See deadman.h.
#include "dist/nccl/deadman.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "dist/net.h"
#include "dist/work.h"

namespace lockstep::dist {
namespace {

std::atomic<bool> printed{false};

// A signal handler that prints the stack of the thread in which it runs: the hanging one.
void show_stack(int) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  printed = true;
}

}  // namespace

Deadman::Deadman(std::function<void(const std::string&)> last_words)
    : last_words_(std::move(last_words)), thread_([this] { loop(); }) {
  void* frame[1];
  backtrace(frame, 1);  // the first call loads libgcc, which a signal handler must not do
}

Deadman::~Deadman() { end_thread(thread_, mutex_, stop_, changed_); }

Deadman::Step::Step(Deadman& deadman, Seconds limit, std::string what, pthread_t waits) : deadman_(deadman) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  const std::lock_guard lock(deadman_.mutex_);
  armed_ = deadman_.armed_.insert(deadman_.armed_.end(), {std::move(what), pthread_self(), waits, limit, until});
  deadman_.changed_.notify_all();
}

Deadman::Step::~Step() {
  const std::lock_guard lock(deadman_.mutex_);
  deadman_.armed_.erase(armed_);
}

void Deadman::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto next = std::min_element(armed_.begin(), armed_.end(),
                                       [](const Armed& a, const Armed& b) { return a.until < b.until; });
    if (next == armed_.end()) changed_.wait(lock);
    else if (std::chrono::steady_clock::now() > next->until)  // report the innermost step of that thread
      end_process(*std::find_if(armed_.rbegin(), armed_.rend(),
                                [&](const Armed& a) { return pthread_equal(a.waits, next->waits); }));
    else {
      const auto until = next->until;  // a copy: the step may end and be erased during the wait
      changed_.wait_until(lock, until);
    }
  }
}

void Deadman::end_process(const Armed& armed) {
  const std::string text = str("[lockstep] ", armed.what, " has not returned for ", text_of(armed.limit),
                               ": ending this process, since the call cannot be interrupted");
  std::fprintf(stderr, "%s. Its thread is in\n", text.c_str());
  std::fflush(nullptr);
  struct sigaction action {};
  action.sa_handler = show_stack;
  sigaction(SIGUSR2, &action, nullptr);
  pthread_kill(armed.thread, SIGUSR2);
  for (int i = 0; i < 200 && !printed; ++i) ::usleep(10000);
  last_words_(text);
  ::_exit(exit_code);
}

}  // namespace lockstep::dist
