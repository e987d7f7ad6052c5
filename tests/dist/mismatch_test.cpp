// Errors when another rank calls a different collective, or is gone: they name the cause, and arrive immediately
// whatever the heartbeat is. The other ranks may have left already, because a rank that only sends completes a call
// early.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "dist/control.h"
#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tests/dist/flight_record.h"
#include "tests/dist/reports.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::over;

namespace {

using Doing = std::function<void(int rank)>;

/// Checks that a job of two ranks ends with an error that has all of these texts, within `limit` seconds.
void check_error_of(const SpawnOptions& job, const Doing& body, const std::vector<std::string>& texts, double limit) {
  const double start = now_seconds();
  const std::string said = message([&] { spawn(2, body, job); });
  INFO("transport ", job.transport, ", text ", said);
  for (const std::string& text : texts) CHECK(contains(said, text));
  CHECK(now_seconds() - start < limit);
}

Doing all_reduce_of(int64_t count) {
  return [=](int) { world().all_reduce(ones({count})); };
}
Doing broadcast_from(int root) {
  return [=](int) { world().broadcast(ones({8}), root); };
}
Doing reduce_to(int root) {
  return [=](int) { world().reduce(ones({8}), root); };
}
void gather_all(int) { world().all_gather(ones({16}), ones({8})); }
void meet(int) { world().barrier(); }
void send_away(int rank) { world().send(ones({8}), 1 - rank); }
void leave(int) {}
void leave_late(int) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

constexpr double soon = 3;  // seconds; shorter than a heartbeat, which is five

}  // namespace

TEST_CASE("mismatch 7: a rank whose call needs nobody leaves, and the others are told what it called") {
  const struct {
    Doing first, second;
    std::string of_first, of_second;
  } rows[] = {
      {all_reduce_of(8), broadcast_from(1), "all_reduce f32 x 8 sum", "broadcast f32 x 8 from rank 1"},
      {all_reduce_of(100000), broadcast_from(1), "all_reduce f32 x 100000 sum", "broadcast f32 x 8 from rank 1"},
      {broadcast_from(0), all_reduce_of(8), "broadcast f32 x 8 from rank 0", "all_reduce f32 x 8 sum"},
      {broadcast_from(0), all_reduce_of(100000), "broadcast f32 x 8 from rank 0", "all_reduce f32 x 100000 sum"},
      {broadcast_from(0), reduce_to(1), "broadcast f32 x 8 from rank 0", "reduce f32 x 8 sum to rank 1"},
      {broadcast_from(0), meet, "broadcast f32 x 8 from rank 0", "barrier"},
      {gather_all, broadcast_from(1), "all_gather f32 x 16", "broadcast f32 x 8 from rank 1"},
      {send_away, all_reduce_of(8), "send f32 x 8 to rank 1", "all_reduce f32 x 8 sum"},
      {send_away, all_reduce_of(100000), "send f32 x 8 to rank 1", "all_reduce f32 x 100000 sum"},
      {send_away, reduce_to(1), "send f32 x 8 to rank 1", "reduce f32 x 8 sum to rank 1"},
  };
  for (const char* transport : {"threads", "shm"})
    for (const auto& row : rows)
      check_error_of(
          over(transport, 60), [&](int rank) { (rank == 0 ? row.first : row.second)(rank); },
          {"ranks disagree in group world", "rank 0 calls " + row.of_first, "rank 1 calls " + row.of_second}, soon);
}

TEST_CASE("mismatch 6: who has left is told at once to whom it leaves waiting") {
  const std::pair<Doing, std::string> rows[] = {
      {all_reduce_of(8), "rank 1 waits in seq 1 (all_reduce f32 x 8); rank 0 has left before its first call there"},
      {reduce_to(1), "rank 1 waits in seq 1 (reduce f32 x 8 to rank 1); rank 0 has left before its first call there"},
      {meet, "rank 1 waits in seq 1 (barrier); rank 0 has left before its first call there"}};
  for (const char* transport : {"threads", "shm", "tcp"})
    for (const auto& [call, expected] : rows)
      for (const Doing& leaving : {Doing(leave), Doing(leave_late)})
        check_error_of(
            over(transport, 60), [&](int rank) { (rank == 0 ? leaving : call)(rank); }, {expected}, soon);
}

TEST_CASE("mismatch 13: ranks that wait for each other in different calls are a circle") {
  for (const char* transport : {"threads", "shm"})
    check_error_of(
        over(transport, 60, 0.3), [](int rank) { broadcast_from(1 - rank)(rank); },
        {"deadlock: rank 0 waits in seq 1 (broadcast f32 x 8 from rank 1) for rank 1, rank 1 waits in seq 1 "
         "(broadcast f32 x 8 from rank 0) for rank 0"},
        10);
}

TEST_CASE("mismatch 1: where a rank was last seen is known of a job younger than a heartbeat") {
  constexpr uint64_t last = 40;
  testing::ErrorReports reports;
  const auto body = [](int rank) {
    for (uint64_t step = 1; step <= last; ++step) {
      set_step(step);
      world().all_reduce(ones({8}));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (rank == 1) raise(SIGKILL);
    world().all_reduce(ones({8}));
  };
  reports.run(2, body, over("shm", 60));  // spawn() itself may notice first that the process is gone
  const std::string text = reports.text(0);
  CAPTURE(text);
  const size_t at = text.find("last seen in step ");
  REQUIRE(at != std::string::npos);
  const uint64_t observed = std::stoull(text.substr(at + 18));
  CHECK(observed > last / 4);
  CHECK(observed <= last);
  CHECK(!contains(text, "before its first collective"));
}

TEST_CASE("mismatch: the flight record knows the step that the control plane was told") {
  const testing::FlightFolder folder;
  const auto body = [](int rank) {
    world().control().set_step(557);  // an engine does this
    world().all_reduce(ones({rank == 0 ? 8 : 9}));
  };
  check_error_of(over("threads", 60, 0.5), body, {"ranks disagree"}, 60);
  CHECK(folder.stuck_in(0) == "world 1: all_reduce f32 x 8, step 557");
  CHECK(folder.stuck_in(1) == "world 1: all_reduce f32 x 9, step 557");
}
