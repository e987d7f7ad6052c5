// The list of LOCKSTEP_* variables, and reading them. See environment.h.
#include "base/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/environment_page.h"
#include "base/suggest.h"

namespace lockstep {
namespace {

using Kind = EnvironmentVariable::Kind;
using Words = std::vector<std::string>;

// Variables of tests, which no program reads: those of the fake CUDA runtime and of test suites.
constexpr std::string_view of_tests[] = {"LOCKSTEP_TEST_", "LOCKSTEP_FAKE_", "LOCKSTEP_SOAK_", "LOCKSTEP_GOLDEN_DIR",
                                         "LOCKSTEP_INTEROP_CHILD"};

const EnvironmentVariable* find(std::string_view name) {
  for (const EnvironmentVariable& v : environment_variables())
    if (name == v.name) return &v;
  return nullptr;
}

std::string expected(const EnvironmentVariable& v) {
  switch (v.kind) {
    case Kind::text: return "any text";
    case Kind::flag: return "0 or 1";
    case Kind::integer: return str("a number from ", int64_t(v.least), " to ", int64_t(v.greatest));
    case Kind::seconds: return str("a number of seconds from ", v.least, " to ", v.greatest);
    case Kind::word: break;
  }
  return listed(v.words);
}

bool can_be(const EnvironmentVariable& v, std::string_view text) {
  const auto parsed = [&](auto number) {
    const auto given = read_number<decltype(number)>(text);
    return given && double(*given) >= v.least && double(*given) <= v.greatest;
  };
  switch (v.kind) {
    case Kind::text: return true;
    case Kind::flag: return text == "0" || text == "1";
    case Kind::integer: return parsed(int64_t());
    case Kind::seconds: return parsed(double());
    case Kind::word: break;
  }
  for (const std::string& word : v.words)
    if (word == text) return true;
  return false;
}

void check(const EnvironmentVariable& v, const std::string& text) {
  LOCKSTEP_CHECK(can_be(v, text), "[environment] expected ", v.name, " to be ", expected(v), ", got '",
                 text.substr(0, 80), text.size() > 80 ? "..." : "", "'", suggestion(text.substr(0, 80), v.words));
}

/// The variable that an entry of the environment sets; null if it is not one of Lockstep's. Error for an unknown name.
const EnvironmentVariable* variable_of(std::string_view entry) {
  if (!entry.starts_with("LOCKSTEP_")) return nullptr;
  for (const std::string_view prefix : of_tests)
    if (entry.starts_with(prefix)) return nullptr;
  const std::string_view name = entry.substr(0, entry.find('='));
  const EnvironmentVariable* v = find(name);
  if (v) return v;
  std::vector<std::string> known;
  for (const EnvironmentVariable& one : environment_variables()) known.emplace_back(one.name);
  const std::string shortened(name.substr(0, 80));
  fail(str("[environment] there is no variable ", shortened, suggestion(shortened, known),
           " (unset it, or choose one that lockstep env --variables lists)"));
}

}  // namespace

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> all = {
      {"LOCKSTEP_ALGORITHM", Kind::text, "automatic",
       "one algorithm for all collectives of the native group; `lockstep schedule --help` names them"},
      {"LOCKSTEP_API_KEY", Kind::text, "", "API key that `gpt serve` requires of requests if `--api-key` is not given"},
      {"LOCKSTEP_BF16_PRODUCTS", Kind::word, "auto",
       "matrix products of bf16 on the CPU. portable: with f32 arithmetic; avx512_bf16: with the processor's bf16 "
       "instructions; auto: with these instructions if the processor has them",
       0, 0, Words({"auto", "portable", "avx512_bf16"})},
      {"LOCKSTEP_COMM_CHECKSUM", Kind::flag, "0",
       "1: every message carries a checksum, and ranks compare the results of reductions"},
      {"LOCKSTEP_CPU_DEVICES", Kind::integer, "1", "number of virtual CPU devices (cpu:0, cpu:1, ...) in a process", 1,
       64},
      {"LOCKSTEP_CUDNN", Kind::word, "1",
       "convolutions on CUDA devices. 0: built-in kernels; 1: cuDNN where it supports the case; log: "
       "like 1, and prints each choice",
       0, 0, Words({"0", "1", "log"})},
      {"LOCKSTEP_DESCRIBE", Kind::text, "",
       "file to which a program writes a description of its training instead of running it. `lockstep plan` and "
       "`simulate` set it"},
      {"LOCKSTEP_ERROR_FILE", Kind::text, "",
       "file into which a rank writes its error for the launcher. The launcher sets it"},
      {"LOCKSTEP_FLIGHT_DIR", Kind::text, "", "folder for the flight records of ranks that fail. The launcher sets it"},
      {"LOCKSTEP_HEARTBEAT", Kind::seconds, "5",
       "seconds between heartbeats; a rank that misses three counts as silent", 0.01, 3600},
      {"LOCKSTEP_INTERFACE", Kind::text, "", "network interface or subnet that ranks use: eth1, 10.0.0.0/8"},
      {"LOCKSTEP_JOB", Kind::text, "", "name of the job; a process of another job is refused. The launcher sets it"},
      {"LOCKSTEP_NCCL_ABORT_TIMEOUT", Kind::seconds, "60",
       "seconds that NCCL may take to abort after a failure; then the process ends", 0.001, 1e6},
      {"LOCKSTEP_NCCL_DEBUG", Kind::flag, "0", "1: ranks compare every NCCL call, not only a sample of them"},
      {"LOCKSTEP_NCCL_EXACT", Kind::flag, "0",
       "1: sums over NCCL follow the summation tree, so results are bit-identical to one process"},
      {"LOCKSTEP_SIGNAL_EXIT_ZERO", Kind::flag, "0",
       "1: training that Ctrl-C or SIGTERM stopped ends with exit code 0, not with 130 or 143"},
      {"LOCKSTEP_TCP_STREAMS", Kind::integer, "4; 1 within a machine", "TCP connections between two ranks", 1, 64},
      {"LOCKSTEP_TERMINAL", Kind::flag, "",
       "1: the launcher's stderr is a terminal, so show a progress bar. The launcher sets it"},
      {"LOCKSTEP_THREADS", Kind::integer, "OMP_NUM_THREADS, else all cores",
       "threads that an operation may use. Where other programs use the cores, take fewer, or set "
       "OMP_WAIT_POLICY=passive: waiting threads spin",
       1, 4096},
      {"LOCKSTEP_TIMEOUT", Kind::seconds, "600",
       "seconds that ranks wait for each other, in a collective or at the start", 0.001, 1e7},
      {"LOCKSTEP_TOKEN", Kind::text, "",
       "secret that the ranks of a job share ([SECURITY.md](../SECURITY.md)). The launcher sets it"},
      {"LOCKSTEP_TRACE_MIB", Kind::integer, "1024", "limit of a rank's timeline (`--trace`), in MiB", 1, 1000000},
      {"LOCKSTEP_TRANSPORT", Kind::word, "auto",
       "how ranks exchange data. auto: memory within a process, shared memory within a machine, else TCP", 0, 0,
       Words({"auto", "threads", "shm", "tcp"})},
      {"LOCKSTEP_WGMMA", Kind::flag, "1",
       "0: attention does not use Hopper's WGMMA instructions, only those available since Ampere"},
  };
  return all;
}

std::optional<std::string> environment(const char* name) {
  const EnvironmentVariable* v = find(name);
  LOCKSTEP_CHECK(v, "[environment] expected a variable listed in base/environment.cpp, got ", name,
                 "; add it to the list there");
  // Check all names here too, since a program may never call check_environment(), and no typo may go unnoticed.
  for (char** entry = environ; entry && *entry; ++entry) variable_of(*entry);
  const char* text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  check(*v, text);
  return text;
}

std::optional<double> environment_number(const char* name) {
  const auto text = environment(name);
  return text ? read_number<double>(*text) : std::nullopt;
}

bool environment_flag(const char* name) { return environment(name).value_or("0") != "0"; }

void check_environment() {
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (const EnvironmentVariable* v = variable_of(text); v && text.size() > text.find('=') + 1)
      check(*v, std::string(text.substr(text.find('=') + 1)));
  }
}

std::string environment_reference() {
  std::string page(environment_page);
  for (const EnvironmentVariable& v : environment_variables())
    page += str("| `", v.name, "` | ", expected(v), " | ", v.fallback, " | ", v.doc, " |\n");
  return page;
}

}  // namespace lockstep
