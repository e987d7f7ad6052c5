// The number of threads: a setting, else the environment, else the cores that the system gives to this process.
#include "tensor/threads.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "tensor/check.h"
#include "tensor/environment.h"

namespace lockstep {
namespace {

constexpr int most_threads = 4096;

std::optional<int> parse_threads(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > most_threads) return {};
  return n;
}

// Cores that the container may use (cgroup v2 "quota period", in microseconds); containers often see every core but may
// use few.
int cgroup_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return most_threads;
  return std::max(1, int(std::strtod(quota.c_str(), nullptr) / period + 0.5));
}

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
  return std::clamp(allowed, 1, cgroup_cores());
}

}  // namespace

namespace detail {

std::atomic<int> threads{0};

int default_threads() {
  int n = 0;
  if (const auto text = environment("LOCKSTEP_THREADS")) {
    n = std::stoi(*text);
  } else if (const char* openmp = std::getenv("OMP_NUM_THREADS"); openmp && *openmp) {
    // OpenMP's own variable may be a list with one number per nesting level, and is its to complain about.
    const std::string_view list = openmp;
    n = parse_threads(list.substr(0, list.find(','))).value_or(0);
  }
  if (n == 0) n = cores();
  int unset = 0;
  return threads.compare_exchange_strong(unset, n) ? n : unset;
}

}  // namespace detail

void set_threads(int n) {
  LOCKSTEP_CHECK(n >= 1 && n <= most_threads, "[set_threads] expected a number from 1 to ", most_threads, ", got ", n);
  detail::threads.store(n, std::memory_order_relaxed);
}

}  // namespace lockstep
