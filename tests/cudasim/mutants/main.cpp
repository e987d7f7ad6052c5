// Runs every planted bug and the correct code, each in its own process. Ends with "N passed, N failed".
//   mutants             runs all cases
//   mutants NAME [bug]  runs one case in this process, for debugging
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/mutants/mutants.h"

extern "C" const char* __asan_default_options() { return "exitcode=66:detect_leaks=0:symbolize=0"; }
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:exitcode=66"; }
extern "C" const char* __tsan_default_options() { return "exitcode=66:halt_on_error=1:atexit_sleep_ms=0"; }

namespace mutants {

std::vector<float> counting(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}
float sum_of(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0f); }

static std::vector<Case>& all_cases() {
  static std::vector<Case> all;
  return all;
}
Cases::Cases(std::initializer_list<Case> cases) { all_cases().insert(all_cases().end(), cases); }

namespace {

enum class Outcome { right, wrong, report, signal, stuck };

int in_this_process(const Case& c, bool bug) {
  const bool right = c.run({c.mistake, bug}) && cudaDeviceSynchronize() == cudaSuccess && fake::first_fault().empty();
  if (!fake::first_fault().empty()) std::fprintf(stderr, "%s\n", fake::first_fault().c_str());
  return right ? 0 : 1;
}

Outcome in_a_child(const Case& c, bool bug, bool quiet) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    if (quiet && !std::freopen("/dev/null", "w", stderr)) _exit(2);
    const int code = in_this_process(c, bug);
    std::fflush(nullptr);
    std::exit(code);  // runs the sanitizers' checks at exit
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? Outcome::stuck : Outcome::signal;
  return WEXITSTATUS(status) == 0 ? Outcome::right : WEXITSTATUS(status) == 66 ? Outcome::report : Outcome::wrong;
}

int run_all() {
  const Build build = simt::with_tsan() ? tsan : simt::with_asan() ? asan : plain;
  int passed = 0, failed = 0;
  const char* const outcomes[] = {"not caught", "wrong result or error", "report", "signal", "stuck"};
  for (const Case& c : all_cases()) {
    const Outcome good = in_a_child(c, false, false);
    // If ranks are threads, a thread that waits makes all devices advance. A late rank may then find results ready that
    // it did not wait for, which hides the bug. It must not stay hidden in every attempt.
    const bool expected = c.caught & build;
    Outcome bad = in_a_child(c, true, true);
    for (int again = 0; again < 4 && expected && bad == Outcome::right; ++again) bad = in_a_child(c, true, true);
    const bool caught = bad != Outcome::right && bad != Outcome::stuck;
    const bool fine = good == Outcome::right && caught >= expected;
    ++(fine ? passed : failed);
    std::printf("%-40s %s%s%s\n", c.name, outcomes[int(bad)],
                !caught && !expected ? " (nor has it to be in this build)" : "",
                good != Outcome::right ? "; FALSE ALARM on the right code"
                : !fine                ? "; MISSED"
                                       : "");
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}

}  // namespace
}  // namespace mutants

int main(int argc, char** argv) {
  using namespace mutants;
  if (argc == 1) return run_all();
  for (const Case& c : all_cases())
    if (!std::strcmp(c.name, argv[1])) return in_this_process(c, argc > 2 && !std::strcmp(argv[2], "bug"));
  std::fprintf(stderr, "expected no argument or the name of a case, got %s\n", argv[1]);
  return 2;
}
