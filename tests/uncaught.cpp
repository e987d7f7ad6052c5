// A program whose main() catches nothing. tests/uncaught.py looks at how it ends.
//
//   uncaught CAUSE [threads | processes]     the cause strikes the last rank; the others wait for it
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/check.h"
#include "dist/process_group.h"
#include "tensor/ops.h"

using namespace lockstep;

namespace {

const std::map<std::string, void (*)()> causes = {
    {"error",
     [] {
       matmul(ones({2, 3}), ones({2, 3}));
     }},
    {"usage", [] { throw UsageError("[uncaught] expected a right option, got a wrong one"); }},
    {"dist", [] { throw dist::DistError(dist::Fault::mismatch, -1, "[uncaught] ranks disagree"); }},
    {"std", [] { throw std::runtime_error("[uncaught] of the standard library"); }},
    {"number", [] { throw 3; }},  // NOLINT: on purpose
    {"thread", [] { std::thread([] { fail("[uncaught] in a thread"); }).join(); }},
    {"locked",  // the stack is not unwound, so the lock stays
     [] {
       static std::mutex mutex;
       const std::lock_guard lock(mutex);
       fail("[uncaught] under a lock");
     }},
    {"noexcept", []() noexcept { fail("[uncaught] in a function that is noexcept"); }},
    {"none", [] {}},
};

void body(const std::string& cause) {
  dist::ProcessGroup& world = dist::world();
  if (world.rank() == world.size() - 1) causes.at(cause)();
  world.all_reduce(ones({4}));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string cause = argc > 1 ? argv[1] : "none", kind = argc > 2 ? argv[2] : "";
  std::printf("begun");                                      // stays in the buffer
  if (cause == "usage" && kind.empty()) causes.at(cause)();  // on every rank, before they meet
  if (!kind.empty()) {
    using Kind = dist::SpawnOptions::Kind;
    dist::spawn(2, [&](int) { body(cause); }, {.kind = kind == "threads" ? Kind::threads : Kind::processes});
  } else if (std::getenv("RANK")) {
    dist::init();
    body(cause);
  } else {
    causes.at(cause)();
  }
  std::printf(", ended\n");
}
