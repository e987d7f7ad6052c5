// Out of memory: the k-th allocation of a training step fails, for k = 1, 2, ... until a step succeeds. Every rank
// throws the error, nothing leaks, and the next step works.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>

#include "optim/optim.h"
#include "tests/parallel/memory_fault.h"

using namespace lockstep;
using namespace lockstep::parallel;
using namespace testing;
using Kind = dist::SpawnOptions::Kind;

namespace {

/// A step of DDP with small buckets, in which the k-th allocation of rank 1 fails (with threads: of any rank). Notes
/// each rank's error.
std::string step_of_two(int64_t k, Kind kind, std::vector<std::string>& said) {
  return message([&] {
    dist::spawn(2,
                [&](int rank) {
                  Mlp net;
                  net.p = 0.1;
                  DistributedDataParallel ddp(net, {.bucket_mib = 1e-4});
                  optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
                  loss_of(net, 0, rank).backward();  // a step before the fault, so that buckets have been rebuilt
                  optimizer.step();
                  optimizer.zero_grad();
                  dist::world().barrier();
                  if (rank == 1) fail_allocation_after(k);
                  dist::world().barrier();
                  try {
                    for (int micro = 0; micro < 2; ++micro) {
                      std::optional<DistributedDataParallel::NoSync> no_sync;
                      if (micro == 0) no_sync.emplace(ddp);
                      loss_of(net, 1, 2 * rank + micro).backward();
                    }
                    optimizer.step();
                    dist::world().barrier();
                  } catch (const Error& error) {
                    if (kind == Kind::threads) said[size_t(rank)] = error.what();
                    throw;
                  }
                },
                {.kind = kind, .timeout = dist::Seconds(60), .heartbeat = dist::Seconds(1)});
  });
}

}  // namespace

TEST_CASE(
    "faults 31: out of memory at the k-th allocation of a DDP step: every rank raises it, nothing leaks, the next job "
    "works") {
  std::vector<std::string> said(2);
  REQUIRE(step_of_two(0, Kind::threads, said) == "(no error)");
  int64_t k = 1;
  for (std::string text; text != "(no error)"; ++k) {
    CAPTURE(k);
    const int64_t before = held();
    {
      const Fault fault(0);
      said.assign(2, "");
      text = step_of_two(k, Kind::threads, said);
    }
    CHECK(held() == before);
    if (text == "(no error)") break;
    CHECK(contains(text, "[memory] could not allocate "));
    CHECK((text.starts_with("[rank 0] ") || text.starts_with("[rank 1] ")));
    const size_t culprit = size_t(text[6] - '0');
    CHECK(said[1 - culprit] == text);
    CHECK(contains(text, said[culprit]));  // without a "[rank r]" in front if the rank itself found the error first
  }
  CHECK(k > 50);
  CHECK(step_of_two(0, Kind::threads, said) == "(no error)");
}

TEST_CASE("faults 31: out of memory in a rank that is a process ends the job in order") {
  std::vector<std::string> said(2);
  int64_t k = 1, failures = 0;
  for (std::string text;; k += 1 + k / 4, ++failures) {
    CAPTURE(k);
    text = step_of_two(k, Kind::processes, said);
    if (text == "(no error)") break;
    CHECK(contains(text, "[rank 1] [memory] could not allocate "));
  }
  CHECK(failures > 8);
}

TEST_CASE(
    "faults 31: out of memory in a step of one process: the step run again is bit-identical to an undisturbed one") {
  Mlp net;
  check_steps_again(net, [&](const Variable& x) { return net(x); });
}
