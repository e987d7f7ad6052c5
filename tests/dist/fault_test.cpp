// Faults of real processes: the error on the other ranks, how soon it comes, and that nothing is left behind.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "dist/process_group.h"
#include "tests/dist/flight_record.h"
#include "tests/dist/job.h"
#include "tests/dist/reports.h"
#include "tests/dist/values.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::ErrorReports;
using testing::FlightFolder;
using testing::ones_of;

namespace {

constexpr int ranks = 3;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t large = 1 << 20;
#else
constexpr int64_t large = 16 << 20;  // elements: 64 MiB
#endif

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Runs `fn` on three processes, and checks that nothing is left of them. Returns the error of spawn().
std::string run(ErrorReports& reports, const std::function<void(int)>& fn) {
  const size_t files = open_files();
  const std::string text = reports.run(ranks, fn, testing::over("shm", 60, 0.5));
  CHECK(open_files() == files);
  CHECK((waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));  // every process has ended
  return text;
}

/// Checks that all ranks but `failed` were soon told an error that contains these texts.
void check_reported(const ErrorReports& reports, int failed, const std::vector<std::string>& texts) {
  for (int r = 0; r < ranks; ++r) {
    if (r == failed) continue;
    CAPTURE(reports.text(r));
    for (const std::string& text : texts) CHECK(contains(reports.text(r), text));
    CHECK(reports.delay(r) < slack());
  }
}

/// Kills a rank while all ranks all-reduce a large tensor again and again.
void kill_in_all_reduce(ErrorReports& reports, int killed) {
  const std::string text = run(reports, [&](int rank) {
    const Tensor data = ones_of(large);
    for (uint64_t step = 1;; ++step) {
      if (step == 3 && rank == killed) {
        std::thread([&] {
          sleep_ms(1000);  // by then the others have received a heartbeat with its current call
          reports.happens();
          kill(getpid(), SIGKILL);
        }).detach();
      }
      set_step(step);
      world().all_reduce(data, {.op = dist::ReduceOp::max, .tag = "g"});
    }
  });
  CHECK_MESSAGE(contains(text, str("rank ", killed)), text);
}

}  // namespace

TEST_CASE("faults 1: a rank is killed in the middle of an all_reduce of 64 MiB") {
  ErrorReports reports;
  const FlightFolder folder;
  kill_in_all_reduce(reports, 1);
  const std::string call = str("all_reduce f32 x ", large, " max, tag g");
  check_reported(reports, 1, {str("rank 1 (pid ", reports.pid(1)), "died; it was last seen in step ", "in seq ", call});
  CHECK(!std::filesystem::exists(folder / "flight-1.json"));
  for (const int rank : {0, 2}) CHECK(contains(folder.stuck_in(rank), call));
}

TEST_CASE("faults 2: the rank that hosts the store is killed") {
  ErrorReports reports;
  kill_in_all_reduce(reports, 0);
  check_reported(reports, 0, {"the store at 127.0.0.1:"});
}

TEST_CASE("faults 3: a stopped rank is silent") {
  ErrorReports reports;
  const FlightFolder folder;
  const std::string text = run(reports, [&](int rank) {
    world().barrier();
    if (rank == 1) {
      reports.happens();
      raise(SIGSTOP);
    }
    world().all_reduce(ones_of(8), {.tag = "w1"});
    world().all_reduce(ones_of(8), {.tag = "w2"});
  });
  check_reported(reports, 1, {str("rank 1 (pid ", reports.pid(1)), "is silent: no heartbeat for "});
  CHECK(contains(text, "rank 1"));
  for (const int rank : {0, 2}) CHECK(contains(folder.stuck_in(rank), "world 2: all_reduce f32 x 8, tag w1"));
}

TEST_CASE("faults 4: a rank that is stopped for a moment goes on") {
  ErrorReports reports;
  CHECK(run(reports, [&](int rank) {
          const Tensor data = ones_of(1000);
          std::jthread helper;  // continues rank 1
          if (rank == 0) {
            helper = std::jthread([&] {
              while (!reports.has_happened()) sleep_ms(1);
              sleep_ms(300);
              kill(reports.pid(1), SIGCONT);
            });
          }
          for (int i = 0; i < 20; ++i) {
            if (rank == 1 && i == 7) {
              reports.happens();
              raise(SIGSTOP);
            }
            world().all_reduce(data, {.op = dist::ReduceOp::mean});
            world().all_reduce(data);
            for (float* x = data.data<float>(); x < data.data<float>() + 1000; ++x) *x = *x / ranks + 1;
          }
          if (data.to_vector<float>()[999] != 21) throw Error(str("wrong result: ", data.to_vector<float>()[999]));
        }) == "(no error)");
}

TEST_CASE("faults 5: a rank throws in a step") {
  ErrorReports reports;
  const std::string text = run(reports, [&](int rank) {
    for (uint64_t step = 1; step < 100; ++step) {
      set_step(step);
      if (rank == 1 && step == 3) {
        reports.happens();
        throw Error("forward: sample 17 is not a number");
      }
      world().all_reduce(ones_of(1000));
    }
  });
  CHECK(text == "[rank 1] forward: sample 17 is not a number");
  for (const int r : {0, 2}) CHECK(reports.text(r) == text);
  check_reported(reports, 1, {});
}

TEST_CASE("faults 6: a rank calls exit(0) early") {
  ErrorReports reports;
  const std::string text = run(reports, [&](int rank) {
    world().all_reduce(ones_of(8), {.tag = "w0"});
    if (rank == 1) {
      reports.happens();
      exit(0);
    }
    world().all_reduce(ones_of(8), {.tag = "w1"});
  });
  CAPTURE(text);
  CHECK(contains(text, "waits in seq 2 (all_reduce f32 x 8, tag w1); rank 1 has left after seq 1"));
  for (const int r : {0, 2}) CHECK(reports.text(r) == text);
  check_reported(reports, 1, {});
}

TEST_CASE("faults 12: one collective more at the end, between processes") {
  ErrorReports reports;
  const std::string text = run(reports, [&](int rank) {
    for (int i = 0; i < 8; ++i) world().all_reduce(ones_of(8), {.tag = "w0"});
    if (rank == 0) world().all_reduce(ones_of(8), {.tag = "w1"});
  });
  CAPTURE(text);
  CHECK(contains(text, "rank 0 waits in seq 9 (all_reduce f32 x 8, tag w1); "));
  CHECK(contains(text, "left after seq 8"));
}

TEST_CASE("faults 7, 10, 11, 13: processes that disagree, or wait for each other") {
  ErrorReports reports;
  const struct {
    const char* expected;
    std::function<void(int)> call;
  } rows[] = {
      {"calls all_reduce f32 x 8 sum, tag w1; rank 2 calls all_reduce f32 x 9 sum, tag w1",
       [](int r) { world().all_reduce(ones_of(r == 2 ? 9 : 8), {.tag = "w1"}); }},
      {"rank 2 calls all_reduce f32 x 8 sum, tag b1",
       [](int r) {
         world().all_reduce(ones_of(8), {.tag = r == 2 ? "b1" : "w1"});
         world().all_reduce(ones_of(8), {.tag = r == 2 ? "w1" : "b1"});
       }},
      {"rank 2 calls broadcast f32 x 8 from rank 0",
       [](int r) { r == 2 ? world().broadcast(ones_of(8), 0) : world().all_reduce(ones_of(8)); }},
      {"deadlock: rank 0 waits to receive from rank 1 (tag a), rank 1 waits to receive from rank 0 (tag b)",
       [](int r) {
         if (r < 2) world().receive(ones_of(8), 1 - r, {.tag = r == 0 ? "a" : "b"});
         else world().barrier();
       }},
  };
  for (const auto& row : rows) {
    const double start = now_seconds();
    const std::string text = run(reports, [&](int rank) {
      row.call(rank);
      world().barrier();
    });
    CAPTURE(text);
    CHECK(contains(text, row.expected));
    for (int r = 0; r < ranks; ++r) CHECK(reports.text(r) == text);
    CHECK(now_seconds() - start < 2 * slack());
  }
}

TEST_CASE("faults 5: a rank that hears nobody is ended by spawn()") {
  ErrorReports reports;
  const double start = now_seconds();
  const std::string text = run(reports, [&](int rank) {
    if (rank == 1) throw Error("stop");
    // Never calls a collective.
    if (rank == 2)
      while (true) sleep_ms(1000);
    world().barrier();
  });
  CHECK(text == "[rank 1] stop");
  CHECK(now_seconds() - start < 4 + slack());
}
