// Errors when another rank calls a different collective, or is gone: they name the cause, and arrive immediately
// whatever the heartbeat is. The other ranks may have left already, because a rank that only sends completes a call
// early.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "dist/control.h"
#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tests/dist/flight_record.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

struct Outcome {
  std::string text;
  double seconds;
};

Outcome reported(const std::string& transport, double heartbeat, const std::function<void(int)>& body, int ranks = 2) {
  const auto start = std::chrono::steady_clock::now();
  const auto kind = transport == "threads" ? SpawnOptions::Kind::threads : SpawnOptions::Kind::processes;
  const std::string text = message([&] {
    spawn(ranks, body, {.kind = kind, .transport = transport, .timeout = Seconds(60), .heartbeat = Seconds(heartbeat)});
  });
  return {text, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

using Doing = std::function<void(int rank)>;

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
    for (const auto& row : rows) {
      const Outcome found = reported(transport, 5, [&](int rank) { (rank == 0 ? row.first : row.second)(rank); });
      INFO("transport ", transport, ", text ", found.text);
      CHECK(contains(found.text, "ranks disagree in group world"));
      CHECK(contains(found.text, "rank 0 calls " + row.of_first));
      CHECK(contains(found.text, "rank 1 calls " + row.of_second));
      CHECK(found.seconds < soon);
    }
}

TEST_CASE("mismatch 6: who has left is told at once to whom it leaves waiting") {
  const std::pair<Doing, std::string> rows[] = {
      {all_reduce_of(8), "rank 1 waits in seq 1 (all_reduce f32 x 8); rank 0 has left before its first call there"},
      {reduce_to(1), "rank 1 waits in seq 1 (reduce f32 x 8 to rank 1); rank 0 has left before its first call there"},
      {meet, "rank 1 waits in seq 1 (barrier); rank 0 has left before its first call there"}};
  for (const char* transport : {"threads", "shm", "tcp"})
    for (const auto& [call, expected] : rows)
      for (const Doing& leaving : {Doing(leave), Doing(leave_late)}) {
        const Outcome found = reported(transport, 5, [&](int rank) { (rank == 0 ? leaving : call)(rank); });
        INFO("transport ", transport, ", text ", found.text);
        CHECK(contains(found.text, expected));
        CHECK(found.seconds < soon);
      }
}

TEST_CASE("mismatch 13: ranks that wait for each other in different calls are a circle") {
  for (const char* transport : {"threads", "shm"}) {
    const Outcome found = reported(transport, 0.3, [](int rank) { broadcast_from(1 - rank)(rank); });
    INFO("transport ", transport, ", text ", found.text);
    CHECK(contains(found.text,
                   "deadlock: rank 0 waits in seq 1 (broadcast f32 x 8 from rank 1) for rank 1, rank 1 waits in seq 1 "
                   "(broadcast f32 x 8 from rank 0) for rank 0"));
    CHECK(found.seconds < 10);
  }
}

TEST_CASE("mismatch 1: where a rank was last seen is known of a job younger than a heartbeat") {
  constexpr uint64_t last = 40;
  int notes[2];
  REQUIRE(pipe(notes) == 0);
  reported("shm", 5, [&](int rank) {
    try {
      for (uint64_t step = 1; step <= last; ++step) {
        set_step(step);
        world().all_reduce(ones({8}));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      if (rank == 1) kill(getpid(), SIGKILL);
      world().all_reduce(ones({8}));
    } catch (const DistError& error) {  // spawn() itself may notice first that the process is gone
      (void)!write(notes[1], error.what(), std::strlen(error.what()));
      throw;
    }
  });
  close(notes[1]);
  std::string text(4096, ' ');
  text.resize(size_t(std::max<ssize_t>(0, read(notes[0], text.data(), text.size()))));
  close(notes[0]);
  CAPTURE(text);
  const size_t at = text.find("last seen in step ");
  REQUIRE(at != std::string::npos);
  const uint64_t observed = std::stoull(text.substr(at + 18));
  CHECK(observed > last / 4);
  CHECK(observed <= last);
  CHECK(!contains(text, "before its first collective"));
}

TEST_CASE("mismatch: the flight record knows the step that the control plane was told") {
  const testing::TempDir folder;
  setenv("LOCKSTEP_FLIGHT_DIR", folder.path.c_str(), 1);
  const Outcome found = reported("threads", 0.5, [](int rank) {
    world().control().set_step(557);  // an engine does this
    world().all_reduce(ones({rank == 0 ? 8 : 9}));
  });
  unsetenv("LOCKSTEP_FLIGHT_DIR");
  CHECK(contains(found.text, "ranks disagree"));
  CHECK(testing::stuck_in(folder.path, 0) == "world 1: all_reduce f32 x 8, step 557");
  CHECK(testing::stuck_in(folder.path, 1) == "world 1: all_reduce f32 x 9, step 557");
}
