// Faults in NCCL collectives: every rank gets the same error in time, with the call named; the results of failed calls
// are never returned.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <nccl.h>

#include <cstdio>

#include "dist/native_group.h"
#include "tensor/ops.h"
#include "tests/cuda/nccl_util.h"
#include "tests/cudasim/fake.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace testing;

namespace {

Tensor ones_on(int rank, int64_t n = 8, DType dtype = f32) {
  return full({n}, 1, {.dtype = dtype, .device = device_of(rank)});
}
void until_failed() {
  until([] { return world().control().failed(); });
  world().barrier();  // throws the error
}

/// Checks that the flight records of both ranks contain a text.
void check_flights(const TempDir& folder, const std::string& text) {
  for (const char* name : {"flight-0.json", "flight-1.json"}) CHECK_MESSAGE(contains(folder.read(name), text), name);
}

}  // namespace

TEST_CASE("nccl 51: ranks that disagree are told before NCCL is called, all of them, with both sides named") {
  const std::pair<std::string, std::function<void(ProcessGroup&, int)>> rows[] = {
      {"calls all_reduce f32 x 8 sum, tag w1; rank 2 calls all_reduce f32 x 9 sum, tag w1",
       [](auto& g, int r) { g.all_reduce(ones_on(r, r == 2 ? 9 : 8), {.tag = "w1"}); }},
      {"sum by automatic; rank 2 calls all_reduce f32 x 8 sum by direct",
       [](auto& g, int r) {
         g.all_reduce(ones_on(r), {.algorithm = r == 2 ? Algorithm::direct : Algorithm::automatic});
       }},
      {"rank 2 calls all_reduce f32 x 8 sum on the CPU",
       [](auto& g, int r) { g.all_reduce(r == 2 ? ones_on(r).to(cpu) : ones_on(r)); }},
      {"rank 2 calls barrier on the CPU",
       [](auto& g, int r) { r == 2 ? g.barrier() : (void)g.all_reduce(ones_on(r)); }},
      {"has 6 elements, 2 of them for rank 2, which has a part of 3",
       [](auto& g, int r) {
         const Tensor all = ones_on(r, 6);
         g.gather(r == 0 ? all : Tensor(), ones_on(r, r == 2 ? 3 : 2), 0);
       }},
      {"rank 1 calls send f32 x 8 to rank 2, tag a; rank 2 calls receive f32 x 9 from rank 1, tag a",
       [](auto& g, int r) {
         r == 1   ? (void)g.send(ones_on(r), 2, {.tag = "a"})
         : r == 2 ? (void)g.receive(ones_on(r, 9), 1, {.tag = "a"})
                  : (void)0;
         g.barrier();
       }},
  };
  for (const bool later : {false, true}) {
    const EnvironmentVariable debug("LOCKSTEP_NCCL_DEBUG", later ? "1" : "0");
    for (const auto& [expected, call] : rows) {
      const auto texts = outcomes(3, [&, &call = call](int rank) {
        if (later) pass_compared_calls(device_of(rank));
        call(world(), rank);
        world().barrier();
        if (rank != 2) until_failed();
      });
      CAPTURE(later);
      CAPTURE(texts[0]);
      CAPTURE(expected);
      CHECK(contains(texts[0], expected));
      CHECK(contains(texts[0], "ranks disagree in group world"));
      for (const std::string& text : texts) CHECK(text == texts[0]);
    }
  }
}

TEST_CASE(
    "nccl 51: an error of NCCL reaches all ranks with the call, ends what is under way, and nobody sees its results") {
  const TempDir folder;
  const EnvironmentVariable flight("LOCKSTEP_FLIGHT_DIR", folder.str());
  std::vector<std::string> read(2);
  const auto texts = outcomes(2, [&](int rank) {
    pass_compared_calls(device_of(rank));
    world().barrier();
    if (rank == 0) fake::inject_nccl_error(ncclInternalError);
    world().barrier();
    if (rank == 1) until([] { return world().control().failed(); });  // rank 0 must be the one that fails
    const Tensor x = ones_on(rank);
    if (rank == 0) {
      // The call itself may already report the failure.
      read[0] = message([&] { world().all_reduce(x, {.tag = "w7", .async = true}).synchronize(); });
      read[1] = message([&] { until([&] { return x.to_vector<float>().empty(); }); });
    }
    world().barrier();
  });
  fake::inject_nccl_error(ncclSuccess);
  CAPTURE(texts[0]);
  CHECK(contains(texts[0], "(all_reduce f32 x 8, tag w7) failed in group world: internal error"));
  CHECK(contains(texts[0], "[rank 0] [nccl] call 104"));
  for (const std::string& text : {texts[1], read[0], read[1]}) CHECK(text == texts[0]);
  check_flights(folder, "(all_reduce f32 x 8, tag w7) failed");
}

TEST_CASE(
    "nccl 51: a kernel that faults while a collective runs fails the job, with a record and advice, over processes") {
  const TempDir folder;
  const EnvironmentVariable flight("LOCKSTEP_FLIGHT_DIR", folder.str());
  const std::string text = message([&] {
    spawn(2,
          [](int rank) {
            fake::set_policy(fake::Policy::lazy);  // the kernel runs, and faults, when the watchdog asks
            pass_compared_calls(device_of(rank));
            world().barrier();
            if (rank == 1) until_failed();  // never makes the call, so that rank 0's watchdog asks whether it is done
            const Tensor x = ones_on(rank);
            Work work = world().all_reduce(x, {.tag = "w8", .async = true});
            fake::fail_run(1);
            ones_on(rank).fill_(2);
            until_failed();
          },
          {.kind = SpawnOptions::Kind::processes, .timeout = Seconds(20), .heartbeat = Seconds(0.2)});
  });
  CAPTURE(text);
  CHECK(contains(text, "[rank 0] [event] cuda: cudaErrorIllegalAddress"));  // found by the watchdog
  CHECK(contains(text, "restart it from its last checkpoint"));
  check_flights(folder, "cudaErrorIllegalAddress");
}

TEST_CASE("nccl 51: a call that others do not make ends at its deadline, whoever waits for it") {
  const auto start = now_seconds();
  const auto texts = outcomes(
      3,
      [](int rank) {
        pass_compared_calls(device_of(rank));
        if (rank == 1) until_failed();
        const Tensor x = ones_on(rank);
        world().all_reduce(x, {.tag = "g"});
        (void)x.to_vector<float>();  // the host waits for the device: the abort ends the wait, and the read throws
        FAIL("results of a collective that was given up");
      },
      1.5);
  CAPTURE(texts[0]);
  CHECK(contains(texts[0], "[all_reduce] waited 1.5 s in group world for call 102 (all_reduce f32 x 8, tag g); "));
  CHECK(contains(texts[0], "rank 1 is between collectives, after seq 101"));
  for (const std::string& text : texts) CHECK(text == texts[0]);
  CHECK(now_seconds() - start < 1.5 + 1 + 10 * slack());
}

TEST_CASE("nccl 51: a rank that throws, leaves, or does not come to the first call") {
  const auto thrown = outcomes(2, [](int rank) {
    pass_compared_calls(device_of(rank));
    if (rank == 1) throw Error("the batch is empty");
    Work work = world().all_reduce(ones_on(rank), {.async = true});
    work.synchronize();
  });
  CHECK(contains(thrown[0], "the batch is empty"));
  const auto left = outcomes(2, [](int rank) {
    pass_compared_calls(device_of(rank));
    if (rank == 0) world().all_reduce(ones_on(rank), {.tag = "more"}).synchronize();
  });
  CHECK(left[0] ==
        "rank 0 waits in seq 102 (all_reduce f32 x 8, tag more); rank 1 has left after seq 101; all ranks must make "
        "the same calls");
  const auto late = outcomes(
      2,
      [](int rank) {
        if (rank == 1) until_failed();
        world().all_reduce(ones_on(rank), {.tag = "first"});
      },
      1);
  CHECK(contains(late[0], "[all_reduce] waited 1 s in group world for all_reduce f32 x 8 sum, tag first; "));
  CHECK(contains(late[0], "rank 1 is in step 0, in no collective yet"));
}

TEST_CASE("nccl: a group that cannot be made says why") {  // as if another rank had gone meanwhile
  const auto texts = outcomes(2, [](int rank) {
    make_nccl_group(current_world()->job, {"pair", "pair", rank + 2, {0, 1}});
  });
  CHECK_MESSAGE(contains(texts[0], "[transport] expected a rank of 0 or more and below 2, got 2"), texts[0]);
}

TEST_CASE("nccl 13: two ranks that receive from each other") {
  const auto texts =
      outcomes(2, [](int rank) { world().receive(ones_on(rank), 1 - rank, {.tag = rank == 0 ? "a" : "b"}); });
  CHECK(contains(texts[0],
                 "deadlock: rank 0 waits to receive from rank 1 (tag a), rank 1 waits to receive from rank 0 (tag b)"));
}

TEST_CASE("nccl 52: if an abort hangs, the process ends and names the call") {
  const EnvironmentVariable limit("LOCKSTEP_NCCL_ABORT_TIMEOUT", "1");
  const TempDir folder;
  const std::string text = message([&] {
    spawn(2,
          [&](int rank) {
            pass_compared_calls(device_of(rank));
            if (rank == 1) until([] { return false; });  // never learns of the failure; spawn() kills it
            REQUIRE(std::freopen((folder / "stderr").c_str(), "w", stderr));
            fake::hang_nccl_abort(true);
            world().all_reduce(ones_on(rank)).synchronize();
          },
          {.kind = SpawnOptions::Kind::processes, .timeout = Seconds(1), .heartbeat = Seconds(0.2)});
  });
  const std::string said = folder.read("stderr");
  CAPTURE(said);
  CHECK(contains(text, "waited 1 s in group world for call 102"));
  CHECK(contains(said, "[lockstep] ncclCommAbort of group world has not returned for 1 s: ending this process"));
  CHECK(contains(said, "[0x"));  // a stack trace
}
