// The number of threads: set_threads(), else the environment, else the cores that the system gives to this process.
#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/environment.h"

namespace lockstep {
namespace {

constexpr int max_threads = 4096;

std::optional<int> parse_threads(std::string_view text) {
  const std::optional<int> n = read_number<int>(text);
  return n && *n >= 1 && *n <= max_threads ? n : std::nullopt;
}

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
  return std::clamp(allowed, 1, container_cores());
}

}  // namespace

int container_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // cgroup v2: "quota period", in microseconds
  std::string words[2];
  file >> words[0] >> words[1];
  const auto quota = read_number<double>(words[0]), period = read_number<double>(words[1]);
  return quota && period && *period > 0 ? int(std::clamp(*quota / *period + 0.5, 1., double(INT_MAX))) : INT_MAX;
}

namespace detail {

std::atomic<int> threads{0};

int default_threads() {
  int n = 0;
  if (const auto text = environment("LOCKSTEP_THREADS")) {
    n = std::stoi(*text);
  } else if (const char* openmp = std::getenv("OMP_NUM_THREADS"); openmp && *openmp) {
    // OpenMP's variable may be a list with one number per nesting level. OpenMP itself warns of invalid values.
    const std::string_view list = openmp;
    n = parse_threads(list.substr(0, list.find(','))).value_or(0);
  }
  if (n == 0) n = cores();
  int unset = 0;
  return threads.compare_exchange_strong(unset, n) ? n : unset;
}

}  // namespace detail

void set_threads(int n) {
  LOCKSTEP_CHECK(n >= 1 && n <= max_threads, "[set_threads] expected a number from 1 to ", max_threads, ", got ", n);
  detail::threads.store(n, std::memory_order_relaxed);
}

}  // namespace lockstep
