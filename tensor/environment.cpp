#include "tensor/environment.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep {
namespace {

using Kind = EnvironmentVariable::Kind;

// Tests have variables of their own, which no program of ours reads: the fake runtime's, a suite's.
constexpr std::string_view of_tests[] = {"LOCKSTEP_TEST_",      "LOCKSTEP_FAKE_", "LOCKSTEP_SOAK_",
                                         "LOCKSTEP_GOLDEN_DIR", "LOCKSTEP_DEPS",  "LOCKSTEP_INTEROP_CHILD"};

const EnvironmentVariable* find(std::string_view name) {
  for (const EnvironmentVariable& v : environment_variables())
    if (name == v.name) return &v;
  return nullptr;
}

std::string expected(const EnvironmentVariable& v) {
  switch (v.kind) {
    case Kind::text: return "a text";
    case Kind::flag: return "0 or 1";
    case Kind::whole: return str("a number from ", int64_t(v.least), " to ", int64_t(v.most));
    case Kind::seconds: return str("a number of seconds from ", v.least, " to ", v.most);
    case Kind::word: break;
  }
  return listed(v.words);
}

bool can_be(const EnvironmentVariable& v, std::string_view text) {
  const auto parsed = [&](auto number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && double(number) >= v.least &&
           double(number) <= v.most;
  };
  switch (v.kind) {
    case Kind::text: return true;
    case Kind::flag: return text == "0" || text == "1";
    case Kind::whole: return parsed(int64_t());
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

/// What an entry of the environment sets; null where it is none of ours. Error for one that is not in the list.
const EnvironmentVariable* variable_of(std::string_view entry) {
  if (!entry.starts_with("LOCKSTEP_")) return nullptr;
  for (const std::string_view prefix : of_tests)
    if (entry.starts_with(prefix)) return nullptr;
  const std::string_view name = entry.substr(0, entry.find('='));
  const EnvironmentVariable* v = find(name);
  if (v) return v;
  std::vector<std::string> known;
  for (const EnvironmentVariable& one : environment_variables()) known.emplace_back(one.name);
  const std::string shown(name.substr(0, 80));
  fail(str("[environment] there is no variable ", shown, suggestion(shown, known),
           "; unset it (lockstep env --variables lists them)"));
}

}  // namespace

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> all = {
      {.name = "LOCKSTEP_ALGORITHM",
       .kind = Kind::text,
       .fallback = "automatic",
       .doc = "the algorithm of all collectives of the native group; lockstep schedule --help names them"},
      {.name = "LOCKSTEP_BF16_PRODUCTS",
       .kind = Kind::word,
       .words = {"auto", "portable", "avx512_bf16"},
       .fallback = "auto",
       .doc =
           "matrix products of bf16 on the CPU: by f32 arithmetic (portable), or by the processor's own instructions; "
           "auto: these where it has them"},
      {.name = "LOCKSTEP_COMM_CHECKSUM",
       .kind = Kind::flag,
       .fallback = "0",
       .doc = "1: every message carries a checksum, and ranks compare what they reduced"},
      {.name = "LOCKSTEP_CPU_DEVICES",
       .kind = Kind::whole,
       .least = 1,
       .most = 64,
       .fallback = "1",
       .doc = "virtual CPU devices cpu:0, cpu:1, ... of a process"},
      {.name = "LOCKSTEP_CUDNN",
       .kind = Kind::word,
       .words = {"0", "1", "log"},
       .fallback = "1",
       .doc =
           "convolutions and attention on CUDA devices: 0 our kernels, 1 cuDNN where it can, log says what is taken"},
      {.name = "LOCKSTEP_CUDNN_WORKSPACE",
       .kind = Kind::whole,
       .least = 1,
       .most = 1 << 20,
       .fallback = "1024",
       .doc = "MiB for scores in cuDNN's backward of attention, which goes by parts of the batch and heads that fit"},
      {.name = "LOCKSTEP_DESCRIBE",
       .kind = Kind::text,
       .doc = "file in which a program says what it would train, and ends; lockstep plan and simulate set it"},
      {.name = "LOCKSTEP_ERROR_FILE",
       .kind = Kind::text,
       .doc = "where a rank leaves its error for the launcher, which sets it"},
      {.name = "LOCKSTEP_FLIGHT_DIR",
       .kind = Kind::text,
       .doc = "folder for flight records of ranks that fail; the launcher sets it"},
      {.name = "LOCKSTEP_HEARTBEAT",
       .kind = Kind::seconds,
       .least = 0.01,
       .most = 3600,
       .fallback = "5",
       .doc = "seconds between signs of life; after three a rank is silent"},
      {.name = "LOCKSTEP_INTERFACE",
       .kind = Kind::text,
       .doc = "network interface or subnet of ranks: eth1, 10.0.0.0/8"},
      {.name = "LOCKSTEP_JOB",
       .kind = Kind::text,
       .doc = "name of the job; a process of another one is refused. The launcher sets it"},
      {.name = "LOCKSTEP_NCCL_ABORT_TIMEOUT",
       .kind = Kind::seconds,
       .least = 0.001,
       .most = 1e6,
       .fallback = "60",
       .doc = "seconds that NCCL has to give up after a failure"},
      {.name = "LOCKSTEP_NCCL_DEBUG",
       .kind = Kind::flag,
       .fallback = "0",
       .doc = "1: ranks compare every call of NCCL, not samples"},
      {.name = "LOCKSTEP_NCCL_EXACT",
       .kind = Kind::flag,
       .fallback = "0",
       .doc = "1: sums over NCCL in tree order, the bits of one process"},
      {.name = "LOCKSTEP_NCCL_WINDOWS",
       .kind = Kind::flag,
       .fallback = "1",
       .doc = "0: buffers of gradients and parameters are no symmetric windows of NCCL"},
      {.name = "LOCKSTEP_SIGNAL_EXIT_ZERO",
       .kind = Kind::flag,
       .fallback = "0",
       .doc = "1: a training that Ctrl-C or SIGTERM stopped ends with 0, not with 130 or 143"},
      {.name = "LOCKSTEP_TCP_STREAMS",
       .kind = Kind::whole,
       .least = 1,
       .most = 64,
       .fallback = "4, between processes of a machine 1",
       .doc = "connections between two ranks"},
      {.name = "LOCKSTEP_TERMINAL",
       .kind = Kind::flag,
       .doc = "1: behind the launcher there is a terminal, so progress is shown. The launcher sets it"},
      {.name = "LOCKSTEP_THREADS",
       .kind = Kind::whole,
       .least = 1,
       .most = 4096,
       .fallback = "OMP_NUM_THREADS, else all cores",
       .doc = "threads of operations"},
      {.name = "LOCKSTEP_TIMEOUT",
       .kind = Kind::seconds,
       .least = 0.001,
       .most = 1e7,
       .fallback = "600",
       .doc = "seconds that ranks wait for each other"},
      {.name = "LOCKSTEP_TOKEN",
       .kind = Kind::text,
       .doc = "the secret that ranks of a job share (SECURITY.md). The launcher sets it"},
      {.name = "LOCKSTEP_TRACE_MIB",
       .kind = Kind::whole,
       .least = 1,
       .most = 1000000,
       .fallback = "1024",
       .doc = "limit of a rank's timeline (--trace), in MiB"},
      {.name = "LOCKSTEP_TRANSPORT",
       .kind = Kind::word,
       .words = {"auto", "threads", "shm", "tcp"},
       .fallback = "auto",
       .doc = "how ranks exchange data"},
      {.name = "LOCKSTEP_WGMMA",
       .kind = Kind::flag,
       .fallback = "1",
       .doc = "0: our attention uses no instructions of Hopper's own, but those of all cards since Ampere"},
  };
  return all;
}

std::optional<std::string> environment(const char* name) {
  const EnvironmentVariable* v = find(name);
  LOCKSTEP_CHECK(v, "[environment] expected a variable of the list in tensor/environment.cpp, got ", name);
  // A program of one's own asks for what it needs only; what is misspelt must not go unseen there either.
  for (char** entry = environ; entry && *entry; ++entry) variable_of(*entry);
  const char* text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  check(*v, text);
  return text;
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
  std::string page =
      "# Environment variables\n\n"
      "Written by `lockstep env --variables`. A value that a variable cannot have, and a name that begins\n"
      "with `LOCKSTEP_` and is not here, are errors. What is set to nothing counts as not set.\n\n"
      "| variable | values | default | what it does |\n|---|---|---|---|\n";
  for (const EnvironmentVariable& v : environment_variables())
    page += str("| `", v.name, "` | ", expected(v), " | ", v.fallback, " | ", v.doc, " |\n");
  return page;
}

}  // namespace lockstep
