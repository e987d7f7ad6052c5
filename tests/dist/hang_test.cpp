// Checks the table of docs/debugging-a-hang.md: each fault is reported as soon as the page says, from which the times
// are read.
#include <doctest/doctest.h>
#include <signal.h>

#include <fstream>
#include <functional>
#include <thread>

#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tests/dist/job.h"
#include "tests/dist/reports.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::over;

namespace {

/// The error that rank 0 gets, and the seconds until it gets it.
struct TimedError {
  std::string text;
  double seconds;
};

void sum(int64_t count) { world().all_reduce(ones({count}), {.tag = "w1"}); }
void receive_from(int rank) { world().receive(ones({8}), rank); }
void sleep_for(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

struct Row {
  std::string what, when;  ///< the row of the page: how its first cell begins, and its last cell
  double least, greatest;  ///< seconds that this means for the job below
  std::string text;        ///< part of the error
  SpawnOptions job;
  /// Rank 1 runs this; it calls happens() when the fault happens. Empty: the last of three ranks never starts.
  std::function<void(const std::function<void()>& happens)> fault;
  std::function<void()> meanwhile = [] { sum(8); };  ///< rank 0 runs this, and gets the error
};

TimedError reported(const Row& row) {
  testing::ErrorReports reports;
  const auto body = [&](int rank) {
    world().barrier();
    if (rank == 0) row.meanwhile();
    else row.fault([&] { reports.happens(); });
  };
  reports.run(2, body, row.job);
  return {reports.text(0), reports.delay(0)};
}

/// Two ranks of three meet.
TimedError without_a_rank() {
  TestJob job(3, 30, 1);
  const double start = now_seconds();
  const auto said = job.run({0, 1}, [](Control&) {});
  return {said.at(0), now_seconds() - start};
}

/// The cells of the row of the page whose first cell begins with `what`.
std::vector<std::string> cells_of(const std::string& what) {
  std::ifstream page(std::string(golden_folder()) + "/../../docs/debugging-a-hang.md");
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| " + what, 0) != 0) continue;
    std::vector<std::string> cells;
    for (size_t at = 2, end; (end = line.find(" |", at)) != line.npos; at = end + 3)
      cells.push_back(line.substr(at, end - at));
    return cells;
  }
  return {};
}

constexpr double beat = 1;  // seconds between heartbeats where they count
/// A rank looks at the clock once in a while; a loaded machine is late.
double late() { return 0.35 + 0.4 * slack() / 3; }

}  // namespace

TEST_CASE("hang: every fault is told as soon as the page says") {
  const SpawnOptions slow = over("shm", 60, 30), threads = over("threads", 60, 30), beating = over("shm", 60, beat),
                     beating_threads = over("threads", 60, beat), hasty = over("threads", 1, beat);
  const std::vector<Row> rows = {
      {"a rank was killed", "within a second", 0, 1, "died; it was last seen", slow,
       [](const auto& happens) { happens(), raise(SIGKILL); }},
      {"a rank threw an exception", "at once", 0, 0, "[rank 1] no such file", slow,
       [](const auto& happens) { happens(), fail("no such file"); }},
      // counted from its last heartbeat, which it sent up to half a second before it stopped
      {"a rank is stopped", "after three heartbeats", 2.5 * beat, 3 * beat, "is silent: no heartbeat for ", beating,
       [](const auto& happens) { happens(), raise(SIGSTOP), sum(8); }},
      {"a rank ended while others still need it", "within half a second", 0, 0.5, "; rank 1 has left", slow,
       [](const auto& happens) { sleep_for(0.3), happens(); }},
      {"a rank ended while others still need it", "within half a second", 0, 0.5, "rank 1 has left", beating_threads,
       [](const auto& happens) { sleep_for(0.3), happens(); }, [] { receive_from(1); }},
      {"the same, but the rank called a different", "at the first message", 0, 0, "ranks disagree", threads,
       [](const auto& happens) { happens(), world().send(ones({8}), 0); }},
      {"ranks call different collectives", "at the first message", 0, 0, "ranks disagree", slow,
       [](const auto& happens) { happens(), sum(9); }},
      {"ranks wait in a circle", "after three heartbeats in which nothing moves", 3 * beat, 3 * beat,
       "deadlock: ", beating_threads, [](const auto& happens) { happens(), receive_from(0); }, [] { receive_from(1); }},
      {"a rank is alive, but computes", "after `LOCKSTEP_TIMEOUT`", 1, 1, " 1 s", hasty,
       [](const auto& happens) { happens(), sleep_for(2.5), sum(8); }},
      {"a rank never started", "after `LOCKSTEP_TIMEOUT`", 1, 1, "missing ranks: 2 (of 0-2)", {}, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const std::vector<std::string> cells = cells_of(row.what);
    REQUIRE(cells.size() == 3);
    CHECK(cells[2] == row.when);
    const TimedError found = row.fault ? reported(row) : without_a_rank();
    CAPTURE(found.text);
    CHECK(contains(found.text, row.text));
    // clocks of threads differ a little
    CHECK(found.seconds >= row.least - 0.1);
    CHECK(found.seconds <= row.greatest + late());
  }
}
