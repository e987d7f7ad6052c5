#pragma once
// A part of a test in a process of its own.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace testing {

/// Runs fn in a forked process, which then ends with exit code 0 unless fn has ended it. Returns the exit code, or 128
/// and the number of the signal that ended it.
template <class Fn> int in_fork(const Fn& fn) {
  const pid_t child = ::fork();
  if (child == 0) {
    fn();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace testing
